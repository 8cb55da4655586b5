"""Profile of token-wise work: the model's own blocks on synthetic samples, timed at their borders, without attention.

A mark is an identity in the graph that notes when forward and backward pass it, and how long the attention clock has
counted by then. Marks stand before the first block and after each; what lies outside of them is embedders and head.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.layout import compile_layout
from zellige_ray.attention.tilings import whole_round
from zellige_ray.data.index import SampleMeta
from zellige_ray.models.specs import ModelSpec
from zellige_ray.placement.plan import Round
from zellige_ray.training.loss import flow_matching_loss
from zellige_ray.training.profile_trials import Trial, halved_round
from zellige_ray.training.runner import Runner

MIN_LAYERS = 2
TEXT = 8  # caption tokens of a sample where the text is not what varies


class Shape(NamedTuple):
    """Pieces of equal length, each a whole sample: visual tokens and caption tokens of one."""

    pieces: int
    tokens: int
    text: int = TEXT

    @property
    def total(self) -> int:
        return self.pieces * self.tokens


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Seconds. forward_s, backward_s: one layer's mean, attention and exchange left out, as outside of the layers.

    attention_s, exchange_s: one layer's mean in all passes.
    """

    load_s: float
    outside_forward_s: float
    outside_backward_s: float
    forward_s: float
    backward_s: float
    attention_s: float
    exchange_s: float
    round_s: float

    def linear_s(self, layers: int) -> float:
        """All but attention and exchange, of a model of so many layers."""
        outside_s = self.load_s + self.outside_forward_s + self.outside_backward_s
        return self.round_s + outside_s + layers * (self.forward_s + self.backward_s)


@dataclass(frozen=True, slots=True)
class SyntheticCache:
    """Random latents and captions of any shape, where a loader expects the samples of a data set."""

    text_dim: int

    def read_frames(self, meta: SampleMeta, start: int, stop: int) -> Tensor:
        C, _, H, W = meta.latent_shape
        return torch.randn((C, stop - start, H, W), generator=torch.Generator().manual_seed(start))

    def read_text(self, meta: SampleMeta) -> Tensor:
        return torch.randn((meta.text_tokens, self.text_dim), generator=torch.Generator().manual_seed(7))


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, note: Callable[[str, int], None], place: int) -> Tensor:
        ctx.note, ctx.place = note, place
        note("forward", place)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.note("backward", ctx.place)
        return grad, None, None


class BlockProbe:
    """Runs shapes through the model of a runner; its gradients are zero afterwards."""

    def __init__(self, runner: Runner, spec: ModelSpec, now: Callable[[], float]) -> None:
        self._runner, self._spec, self._now = runner, spec, now
        self._loader = replace(runner.loader, cache=SyntheticCache(runner.loader.text_dim))  # type: ignore[arg-type]
        self._depth, self._single = len(runner.bound.blocks), True

    def shorten(self, affordable: float) -> float:
        """Leave out layers from here on, where only this share of them is affordable; how much cheaper a run gets.

        Blocks that return more than one tensor are never left out, since what passes them by is not known; nor are
        those of a sharded state, which are put together in turn.
        """
        layers = len(self._runner.bound.blocks)
        if affordable >= 1 or not self._single or self._runner.state.sharded:
            return 1.0
        self._depth = min(layers, max(MIN_LAYERS, round(layers * affordable)))
        return layers / self._depth

    def time(self, shape: Shape) -> BlockTimes:
        """One forward and backward of whole samples. pieces of 0: a rank without a token."""
        pieces, lengths = shape.pieces, [self.length(shape)] * shape.pieces
        round_ = whole_round(lengths, [0] * pieces, self._runner.heads, [shape.text] * pieces)
        return self._run(round_, shape, None)

    def time_shared(self, shape: Shape, pairs: Sequence[tuple[int, int]], comm: Comm) -> BlockTimes:
        """One forward and backward of a sample of one piece for each pair of ranks, who share it.

        Every rank of `comm` calls it at once; raises CommError or Regroup.
        """
        round_ = halved_round(self.length(shape), self._runner.heads, pairs, shape.text)
        return self._run(round_, shape, comm)

    def trial(self, shape: Shape, pairs: Sequence[tuple[int, int]], times: Sequence[BlockTimes]) -> Trial:
        """What runs of `time_shared` say of the whole model: the mean, because disturbances are what ranks wait for."""
        layers = len(self._runner.bound.blocks)
        return Trial(
            halved_round(self.length(shape), self._runner.heads, pairs, shape.text),
            statistics.median(t.linear_s(layers) for t in times),
            layers * statistics.median(t.attention_s for t in times),
            layers * statistics.fmean(t.exchange_s for t in times),
        )

    def length(self, shape: Shape) -> int:
        """Tokens of a sequence of one piece, as rounds count them."""
        return shape.tokens + (shape.text if self._spec.joint else 0)

    def _run(self, round_: Round, shape: Shape, comm: Comm | None) -> BlockTimes:
        metas = [self._sample(i, shape) for i in range(len(round_.ids))]
        began = self._now()
        layout = compile_layout(round_, comm.rank if comm is not None else 0, self._runner.heads)
        engine = self._runner.attention(layout, comm)
        made = self._now()
        weights = self._loader.weights(metas) if metas else {}
        share = self._loader.share(layout, metas, 0, weights)
        loaded = self._now()
        seen: dict[tuple[str, int], tuple[float, float]] = {}

        def note(way: str, place: int) -> None:
            times = engine.clock.read()
            seen[way, place] = (self._now(), times.attention_s + times.exchange_s)

        blocks = self._runner.bound.blocks[: self._depth]
        with _marked(blocks, note) as outputs, _left_out(self._runner.bound.blocks[self._depth :]):
            loss = flow_matching_loss(self._runner.predict(share.packed, engine), share.target_TCphw, share.weight_T)
        note("forward", len(blocks) + 1)
        self._single = not any(outputs)
        loss.backward()  # type: ignore[no-untyped-call]
        note("backward", -1)
        engine_times = engine.clock.read()
        self._runner.state.layout.zero()
        seen["start", 0] = (loaded, 0.0)
        last = len(blocks)
        seen.setdefault(("backward", 0), seen["backward", -1])  # nothing before the first block learns

        def between(a: tuple[str, int], b: tuple[str, int]) -> float:
            (t0, own0), (t1, own1) = seen[a], seen[b]
            return max(0.0, (t1 - t0) - (own1 - own0))

        return BlockTimes(
            load_s=loaded - made,
            outside_forward_s=between(("start", 0), ("forward", 0)) + between(("forward", last), ("forward", last + 1)),
            outside_backward_s=between(("forward", last + 1), ("backward", last))
            + between(("backward", 0), ("backward", -1)),
            forward_s=between(("forward", 0), ("forward", last)) / last,
            backward_s=between(("backward", last), ("backward", 0)) / last,
            attention_s=engine_times.attention_s / last,
            exchange_s=engine_times.exchange_s / last,
            round_s=made - began,
        )

    def _sample(self, number: int, shape: Shape) -> SampleMeta:
        side = 1 << ((shape.tokens.bit_length() - 1) // 2)
        pt, ph, pw = self._spec.patch
        latent = (self._spec.latent_channels, pt, side * ph, shape.tokens // side * pw)
        return SampleMeta(f"profile-{number}", "image", latent, shape.text)


@contextmanager
def _marked(blocks: Sequence[torch.nn.Module], note: Callable[[str, int], None]) -> Iterator[list[bool]]:
    """Marks before the first block and after each; notes of every block whether it returned several tensors."""
    several: list[bool] = []

    def before(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        place = next((i for i, x in enumerate(args) if _learns(x)), None)
        if place is not None:
            return (*args[:place], _Mark.apply(args[place], note, 0), *args[place + 1 :]), kwargs  # type: ignore[no-untyped-call]
        name = next((k for k, x in kwargs.items() if _learns(x)), None)
        if name is not None:
            return args, {**kwargs, name: _Mark.apply(kwargs[name], note, 0)}  # type: ignore[no-untyped-call]
        note("forward", 0)
        return args, kwargs

    def after(place: int) -> Callable[..., Any]:
        def hook(_module: torch.nn.Module, _args: Any, out: Any) -> Any:
            several.append(not isinstance(out, Tensor))
            if isinstance(out, Tensor):
                return _Mark.apply(out, note, place)  # type: ignore[no-untyped-call]
            return (*out[:-1], _Mark.apply(out[-1], note, place))  # type: ignore[no-untyped-call]

        return hook

    handles: list[Any] = [blocks[0].register_forward_pre_hook(before, with_kwargs=True)]
    handles += [block.register_forward_hook(after(i + 1)) for i, block in enumerate(blocks)]
    try:
        yield several
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _left_out(blocks: Sequence[torch.nn.Module]) -> Iterator[None]:
    """These blocks return their first argument, as if they were not there."""
    missing = object()
    before = [block.__dict__.get("forward", missing) for block in blocks]
    for block in blocks:
        block.forward = lambda x, *_args, **_kwargs: x
    try:
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is missing:
                del block.__dict__["forward"]
            else:
                block.forward = forward


def _learns(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad
