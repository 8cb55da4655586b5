"""Weighing: the memory model of a run, from a few small steps of its own model on its own device, by one rank alone.

What a step holds outside of attention is linear in tokens, caption tokens and sequences, stretch by stretch between two
attention layers: those coefficients are fitted. What an attention layer holds follows from the engine's own code (see
`attention.buffers`); of it only how many layers are alive in each stretch is found out, by two steps of cut sequences
whose peers are not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zellige_ray.attention.buffers import LayerBuffers
from zellige_ray.attention.clock import Phase, PhaseClock
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.engine import AttentionEngine
from zellige_ray.attention.layer import Memo
from zellige_ray.attention.layout import compile_layout
from zellige_ray.attention.pending import Pending
from zellige_ray.config import ModelConfig
from zellige_ray.data.index import SampleMeta
from zellige_ray.models.rows import MIN_TOKENS
from zellige_ray.placement.memory import MemoryModel, Moment, StateSize
from zellige_ray.placement.plan import Plan, Round
from zellige_ray.training.live_bytes import LiveBytes, count_live
from zellige_ray.training.loss import flow_matching_loss
from zellige_ray.training.made_up import make_share
from zellige_ray.training.runner import Runner

FloatArray = NDArray[np.float64]

CUDA_OVERHEAD = 1.05  # blocks that the caching allocator holds and can't use, over what is asked for
EXCHANGES = 4  # phases of that name in the backward of one attention layer
LEAST_TOKENS = 128
# Sequences of each step, in units of the base length, and caption tokens of each.
WHOLE: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1,), 4),
    ((3,), 4),
    ((1, 1, 1), 4),
    ((1,), 96),
)


@dataclass(frozen=True, slots=True)
class Counted:
    """A step as it was counted, beside the state. Units: bytes.

    outside: most between attention layers, one by one. entry, inside: alive when the backward of an attention layer
    begins, and most within it.
    """

    outside: FloatArray
    entry: FloatArray
    inside: FloatArray


def weigh(runner: Runner, model: ModelConfig, comm: Comm | None = None) -> MemoryModel:
    """The memory model of a runner whose state is as it will be; gradients are zero afterwards.

    comm: where the state is sharded, all ranks weigh together. Raises CommError or Regroup.
    """
    spec, heads, base = runner.loader.spec, model.heads, _base_tokens(model)
    facts, steps = [], []

    def step(round_: Round) -> Counted:
        return _step(runner, round_, comm)

    for lengths, caption in WHOLE:
        tokens = [n * base for n in lengths]
        round_ = _round(tokens, caption, heads, shard_rank=0, tile_rank=0)
        steps.append(step(round_))
        facts.append((1.0, sum(tokens), len(tokens) * caption, len(tokens)))
    size = 2 if runner.engine.dtype == "bfloat16" else runner.loader.dtype.itemsize  # of what attention takes
    buffers = LayerBuffers(heads, model.head_dim * size, 8 if size == 8 else 4)
    facts_P4 = np.array(facts)
    outside_4K = _fit(facts_P4, [s.outside for s in steps])
    entry_4A = _fit(facts_P4, [s.entry for s in steps])
    first, *_ = buffers.backward()
    whole_T = first.of_count("tokens") + first.of_count("whole_run_tokens")
    inside = [s.inside - s.entry - whole_T * n for s, n in zip(steps[:2], facts_P4[:2, 1], strict=True)]
    more_T = (inside[1] - inside[0]) / (facts_P4[1, 1] - facts_P4[0, 1])  # a gradient that had to be made contiguous
    alive_K = alive_A = (np.zeros(0), np.zeros(0))
    if spec.max_degree != 1:
        far = step(_round([base], 4, heads, shard_rank=0, tile_rank=1))
        tiles = step(_round([base], 4, heads, shard_rank=1, tile_rank=0))
        alive_K = _layers_alive(buffers, base, outside_4K, far.outside, tiles.outside, heads)
        alive_A = _layers_alive(buffers, base, entry_4A, far.entry, tiles.entry, heads)
    moments = [_moment(f"stretch {i}", row, alive_K, i, buffers) for i, row in enumerate(outside_4K.T)]
    for i, row in enumerate(entry_4A.T):
        entry = _moment(f"attention {i}", row, alive_A, i, buffers)
        for inner in buffers.backward():
            total = np.add(entry.row, inner.row)
            total[1] += max(0.0, more_T[i])
            moments.append(Moment(f"{entry.name}: {inner.name}", tuple(total.tolist())))
    place = runner.state.layout.place
    trained = sum(p.numel() * p.element_size() for _, p in runner.state.pieces) * len(place.members)
    most = trained / min(map(len, place.groups))  # of a rank in the smallest group
    moments.append(Moment.of("optimizer", constant=most))  # square roots of the second moments
    overhead = CUDA_OVERHEAD if runner.loader.device.type == "cuda" else 1.0
    return MemoryModel(_state_size(runner), _undominated(moments), overhead, measured=True)


def peak_of_step(
    runner: Runner, plan: Plan, samples: Sequence[SampleMeta], pass_: int, comm: Comm | None, update: bool = True
) -> int:
    """Most bytes alive on this rank in a step, the state included; on CUDA, on its device. Units: bytes.

    update: the step is applied, as the next of its state; False: gradients only. Every rank of the plan calls it.
    """
    live = count_live(runner.loader.device, held_tensors(runner))
    with live:
        runner.gradients(plan, samples, pass_, comm)
        if update:
            runner.state.apply(runner.state.step + 1)
    return live.peak


def state_bytes(runner: Runner) -> int:
    """Bytes of parameters, buffers, gradients, optimizer and EMA that this rank holds."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held_tensors(runner)}
    return sum(storages.values())


def _state_size(runner: Runner) -> StateSize:
    layout, held = runner.state.layout, float(state_bytes(runner))
    if layout.place.layout == "replicated":
        return StateSize(held)
    vectors = [*runner.state.tensors(), *[u.own_grad for u in layout.units]]
    parts = sum(t.numel() * t.element_size() for t in vectors if t.ndim)
    return StateSize(held - parts, float(parts * len(layout.place.members)), by_node=layout.place.layout == "hsdp")


def held_tensors(runner: Runner) -> list[Tensor]:
    """Everything that stays from step to step."""
    state = runner.state
    return [*state.tensors(), *state.module.parameters(), *[u.own_grad for u in state.layout.units]]


# One step


def _step(runner: Runner, round_: Round, comm: Comm | None) -> Counted:
    layout = compile_layout(round_, 0, runner.heads)
    settings = runner.engine
    live = count_live(runner.loader.device, held_tensors(runner))
    clock = _LayerClock(live)
    engine = _Marked(
        layout,
        cast(Comm, _Nobody(runner.loader.device)),
        kernel=settings.kernel,
        transport="p2p",
        deterministic=settings.deterministic,
        clock=clock,
        device=runner.loader.device,
    )
    engine.clock_of_layers = clock
    with live:
        base = live.now
        live.lap()
        with runner.state.layout.running(comm):
            share = make_share(runner.loader, layout, round_)
            loss = flow_matching_loss(runner.predict(share.packed, engine), share.target_TCphw, share.weight_T)
            torch.autograd.backward(loss)
        clock.outside.append(live.lap())
    runner.state.layout.zero()
    return Counted(*(np.array(x, dtype=np.float64) - base for x in (clock.outside, clock.entry, clock.inside)))


class _LayerClock(PhaseClock):
    """Marks where attention layers begin and end; the end of a backward is that of its last exchange."""

    def __init__(self, live: LiveBytes) -> None:
        super().__init__()
        self.outside: list[int] = []
        self.entry: list[int] = []
        self.inside: list[int] = []
        self._live, self._left = live, 0

    def forward_begins(self) -> None:
        self.outside.append(self._live.lap())

    def forward_ends(self) -> None:
        self._live.lap()

    def backward_begins(self) -> None:
        self.outside.append(self._live.lap())
        self.entry.append(self._live.now)
        self._left = EXCHANGES

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        yield
        if name == "exchange" and self._left:
            self._left -= 1
            if not self._left:
                self.inside.append(self._live.lap())


class _Marked(AttentionEngine):
    """Says when its layers run; a layer that is left for good asks `leave_if_cancelled` outside of `attend`."""

    clock_of_layers: _LayerClock
    _attending = False

    def attend(self, q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, memo: Memo | None = None) -> Tensor:
        self.clock_of_layers.forward_begins()
        self._attending = True
        try:
            return super().attend(q_TNH, k_TNH, v_TNH, memo)
        finally:
            self._attending = False
            self.clock_of_layers.forward_ends()

    def leave_if_cancelled(self) -> None:
        if not self._attending:
            self.clock_of_layers.backward_begins()


class _Nobody:
    """A communicator of two ranks whose other one is not there: what it would send is zero."""

    rank, size = 0, 2

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def exchange(self, send: Tensor, send_rows: Any, recv_rows: Any, key: int, out: Tensor) -> Pending[Tensor]:
        return Pending.ready(out.zero_())


# Fitting


def _fit(facts_P4: FloatArray, rows: Sequence[FloatArray]) -> FloatArray:
    """Coefficients of (1, tokens, caption tokens, sequences), by least squares: [4, K]."""
    return np.asarray(np.linalg.lstsq(facts_P4, np.stack(rows), rcond=None)[0], dtype=np.float64)


def _layers_alive(
    buffers: LayerBuffers, tokens: int, fitted_4K: FloatArray, far_K: FloatArray, tiles_K: FloatArray, heads: int
) -> tuple[FloatArray, FloatArray]:
    """Layers of which q, k, v of whole sequences are alive, and units: from a step without, one with only those."""
    whole, dummies = np.array([1.0, tokens, 4, 1]) @ fitted_4K, np.array([1.0, MIN_TOKENS, 0, 0]) @ fitted_4K
    kept = buffers.kept()["whole_tokens"] * tokens
    units = sum(buffers.units().values()) * tokens * heads
    return np.maximum(np.rint((whole - far_K) / kept), 0), np.maximum(np.rint((tiles_K - dummies) / units), 0)


def _moment(
    name: str, row_4: FloatArray, alive: tuple[FloatArray, FloatArray], place: int, buffers: LayerBuffers
) -> Moment:
    constant, token, caption, sequence = row_4.tolist()
    kept, units = (float(a[place]) if len(a) else 0.0 for a in alive)
    whole = kept * buffers.kept()["whole_tokens"]
    return Moment.of(
        name,
        constant=max(0.0, constant),
        tokens=token - whole,
        whole_tokens=whole,
        caption_tokens=caption,
        sequences=sequence,
        **{count: units * b for count, b in buffers.units().items()},
    )


def _undominated(moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """Without those that another one exceeds whatever a rank has; of the first's constant a thousandth is noise."""
    out: list[Moment] = []
    for moment in sorted(moments, key=lambda m: -sum(m.row[1:])):
        row = np.array(moment.row)
        if not any((row <= np.array(other.row) * 1.001 + 1e-6).all() for other in out):
            out.append(moment)
    return tuple(out)


def _base_tokens(model: ModelConfig) -> int:
    """So many that activations outweigh the gradients of single weights, which do not depend on tokens."""
    return max(LEAST_TOKENS, -(-model.heads * model.head_dim // 16) * 16)


def _round(lengths: Sequence[int], caption: int, heads: int, shard_rank: int, tile_rank: int) -> Round:
    """Sequences whose tokens are all on one rank of two, and whose attention is on one."""
    S = range(len(lengths))
    return Round(
        ids=tuple(f"s{i}" for i in S),
        tokens_S=np.array(lengths),
        text_tokens_S=np.full(len(lengths), caption),
        shards_K4=np.array([(s, shard_rank, 0, lengths[s]) for s in S]),
        tiles_M6=np.array([(s, tile_rank, 0, heads, 0, lengths[s]) for s in S]),
    )
