"""Trials: what coalescing and overlapping exchanges are worth, on gloo ranks that are threads of this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.engine import AttentionEngine
from zellige_ray.attention.exchange import Exchange, InFlight, Move
from zellige_ray.attention.layout import compile_layout
from zellige_ray.attention.pending import Pending
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.placement.plan import Round

HEADS, DIM = 8, 64
GROUPS = ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2), (0, 1, 2), (1, 2, 3))  # eight overlapping ones of four ranks


def even_round(groups: tuple[tuple[int, ...], ...], tokens: int, fillers: tuple[tuple[int, int], ...] = ()) -> Round:
    """One sequence per group, tokens and heads cut evenly; fillers (rank, tokens), alternating overlap parts."""
    shards, tiles, lengths = [], [], [tokens] * len(groups) + [n for _, n in fillers]
    for s, group in enumerate(groups):
        for i, rank in enumerate(group):
            shards.append((s, rank, i * tokens // len(group), (i + 1) * tokens // len(group)))
            tiles.append((s, rank, i * HEADS // len(group), (i + 1) * HEADS // len(group), 0, tokens))
    for s, (rank, n) in enumerate(fillers, start=len(groups)):
        shards.append((s, rank, 0, n))
        tiles.append((s, rank, 0, HEADS, 0, n))
    names = tuple(f"s{i}" for i in range(len(lengths)))
    return Round(
        ids=names,
        tokens_S=np.array(lengths),
        text_tokens_S=np.zeros(len(lengths), dtype=np.int64),
        shards_K4=np.array(sorted(shards)),
        tiles_M6=np.array(sorted(tiles)),
        second=names[len(groups) + 1 :: 2],
    )


def coalesced_over_separate(tokens: int = 192, repeats: int = 15) -> float:
    """Seconds of one collective per sequence over seconds of one exchange for all, per layer, on 4 ranks with 8 groups.

    Both move q, k, v in and outputs out, packing and unpacking included. The separate way uses a real subgroup per
    sequence.
    """
    whole = even_round(GROUPS, tokens)
    singles = [even_round((group,), tokens) for group in GROUPS]

    def body(rank: int, comm: Comm) -> list[float]:
        together = [Exchange(compile_layout(whole, rank, HEADS), comm, "p2p")]
        rows = [tokens // len(group) if rank in group else 0 for group in GROUPS]
        apart = [
            Exchange(compile_layout(one, rank, HEADS), comm, "group")
            for one, group in zip(singles, GROUPS, strict=True)
            if rank in group
        ]
        mine = [n for n in rows if n]

        def layer(exchanges: list[Exchange], lengths: list[int]) -> None:
            for exchange, n in zip(exchanges, lengths, strict=True):
                operand = torch.ones(n * HEADS, DIM)
                exchange.finish(exchange.start(exchange.qkv_in, [operand, operand, operand]))
                rows = sum(copy.heads * copy.tokens for part in exchange.o_out.copies[0] for copy in part)
                exchange.finish(exchange.start(exchange.o_out, [torch.ones(rows, DIM)]))

        ratios: list[float] = []
        for repeat in range(repeats + 2):
            seconds = []
            for exchanges, lengths in ((together, [sum(mine)]), (apart, mine)):
                comm.barrier()
                began = time.perf_counter()
                layer(exchanges, lengths)
                comm.barrier()
                seconds.append(time.perf_counter() - began)
            if repeat >= 2:
                ratios.append(seconds[1] / seconds[0])
        return ratios

    results = run_ranks(4, lambda rank, comm: body(rank, comm), timeout_s=60.0, max_groups=len(GROUPS))
    return statistics.median(results[0])


def overlapped_over_not(
    bytes_per_s: float | None, tokens: int = 512, filler_tokens: int = 512, repeats: int = 7
) -> float:
    """Seconds of a layer that waits for its exchanges at once, over seconds of one that overlaps them.

    Two ranks share a sequence, each also has two fillers. bytes_per_s: rate of an emulated link; None: loopback as it
    is.
    """
    round_ = even_round(((0, 1),), tokens, tuple((rank, filler_tokens) for rank in (0, 0, 1, 1)))

    def body(rank: int, comm: Comm) -> list[float]:
        if bytes_per_s is not None:
            comm.__class__ = _SlowComm
            comm.bytes_per_s = bytes_per_s  # type: ignore[attr-defined]
        layout = compile_layout(round_, rank, HEADS)
        engines = [AttentionEngine(layout, comm), AttentionEngine(layout, comm)]
        engines[1].exchange.__class__ = _Impatient
        operands = [torch.randn(layout.num_tokens, HEADS, DIM, requires_grad=True) for _ in range(3)]
        ratios: list[float] = []
        for repeat in range(repeats + 1):
            seconds = []
            for engine in engines:
                comm.barrier()
                began = time.perf_counter()
                out = engine.attend(operands[0], operands[1], operands[2])
                torch.autograd.backward(out, torch.ones_like(out))
                comm.barrier()
                seconds.append(time.perf_counter() - began)
            if repeat:
                ratios.append(seconds[1] / seconds[0])
        return ratios

    return statistics.median(run_ranks(2, body)[0])


def exchange_overhead(tokens: int = 1024, repeats: int = 7) -> dict[str, float]:
    """Milliseconds per layer, forward and backward, of exchange and of attention, and bytes, for a sequence cut over
    two ranks.
    """
    round_ = even_round(((0, 1),), tokens)

    def body(rank: int, comm: Comm) -> tuple[float, float, int]:
        layout = compile_layout(round_, rank, HEADS)
        engine = AttentionEngine(layout, comm)
        operands = [torch.randn(layout.num_tokens, HEADS, DIM, requires_grad=True) for _ in range(3)]
        times = []
        for _ in range(repeats + 1):
            comm.barrier()
            engine.clock.reset()
            out = engine.attend(operands[0], operands[1], operands[2])
            torch.autograd.backward(out, torch.ones_like(out))
            read = engine.clock.read()
            times.append((read.exchange_s, read.attention_s))
        exchange, attention = (1e3 * statistics.median(t[i] for t in times[1:]) for i in (0, 1))
        return exchange, attention, layout.wire_bytes(DIM, 4)

    exchange, attention, sent = run_ranks(2, body)[0]
    return {"exchange_ms": exchange, "attention_ms": attention, "sent_bytes": float(sent)}


class _Impatient(Exchange):
    """Waits as soon as it has posted: nothing overlaps."""

    def start(self, move: Move, operands: Sequence[Tensor]) -> InFlight:
        flight = super().start(move, operands)
        flight.pending.wait()
        return flight


class _SlowComm(Comm):
    """An exchange is complete no sooner than its bytes take on a link of `bytes_per_s`."""

    bytes_per_s: float

    def exchange(
        self,
        send: Tensor,
        send_rows: Mapping[int, int],
        recv_rows: Mapping[int, int],
        key: int,
        out: Tensor | None = None,
    ) -> Pending[Tensor]:
        began = time.perf_counter()
        pending = super().exchange(send, send_rows, recv_rows, key, out)
        size = max(sum(send_rows.values()), sum(recv_rows.values())) * send.shape[1] * send.element_size()
        return _Delayed(pending, began + size / self.bytes_per_s)


class _Delayed(Pending[Tensor]):
    """Another pending, complete at `ready_at` or later."""

    __slots__ = ("_inner", "_ready_at")

    def __init__(self, inner: Pending[Tensor], ready_at: float) -> None:
        self._inner = inner
        self._ready_at = ready_at

    def wait(self) -> Tensor:
        result = self._inner.wait()
        time.sleep(max(0.0, self._ready_at - time.perf_counter()))
        return result
