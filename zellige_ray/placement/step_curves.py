"""Step curves: what one rank was measured to need for the parts of a step, as the forecast reads them.

Seconds of one model, one device, one thread count: a profile file says which (see `profile_file`). Token-wise work is
measured through the model's own blocks, attention through its kernel, exchanges and reduction through the communicator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from zellige_ray.errors import ConfigError
from zellige_ray.placement.curves import Curve, FloatArray, Surface, mean_curve, mean_surface
from zellige_ray.placement.preset import check_keys


@dataclass(frozen=True, slots=True)
class TokenWork:
    """Seconds of token-wise work: over visual tokens, fixed part included; more for text tokens, more for pieces."""

    tokens: Curve
    text: Curve
    pieces: Curve

    def seconds(self, tokens: ArrayLike, text: ArrayLike, pieces: ArrayLike) -> FloatArray:
        """Of ranks that hold so many visual tokens, text tokens and pieces."""
        return self.tokens(tokens) + self.text(text) + self.pieces(pieces)

    def scaled(self, factor: float) -> TokenWork:
        """All seconds times a positive factor."""
        return TokenWork(self.tokens.scaled(factor), self.text.scaled(factor), self.pieces.scaled(factor))


@dataclass(frozen=True, slots=True)
class KernelWork:
    """Seconds of one head of one segment, over (queries, keys), and of one call whatever it holds."""

    forward: Surface
    backward: Surface
    forward_call_s: float
    backward_call_s: float

    def seconds(self, segments: Sequence[tuple[float, float, float]], calls: int) -> tuple[float, float]:
        """(forward, backward) of segments (heads in all, queries, keys), in so many calls."""
        if not segments:
            return 0.0, 0.0
        heads_S, queries_S, keys_S = np.array(segments, dtype=np.float64).T
        forward = float((heads_S * self.forward(queries_S, keys_S)).sum()) + calls * self.forward_call_s
        backward = float((heads_S * self.backward(queries_S, keys_S)).sum()) + calls * self.backward_call_s
        return forward, backward

    def scaled(self, factor: float) -> KernelWork:
        """All seconds times a positive factor."""
        calls = (self.forward_call_s * factor, self.backward_call_s * factor)
        return KernelWork(self.forward.scaled(factor), self.backward.scaled(factor), *calls)


@dataclass(frozen=True, slots=True)
class CopyWork:
    """Seconds of packing or unpacking rows of an exchange, by bytes; each rectangle; a layer's empty exchanges."""

    bytes: Curve
    rectangle_s: float
    call_s: float

    def scaled(self, factor: float) -> CopyWork:
        """All seconds times a positive factor."""
        return CopyWork(self.bytes.scaled(factor), self.rectangle_s * factor, self.call_s * factor)


@dataclass(frozen=True, slots=True)
class WireWork:
    """Seconds from posting to completion, over bytes: one way, and both ways at once (each way has these bytes)."""

    one_way: Curve
    both_ways: Curve

    def scaled(self, factor: float) -> WireWork:
        """All seconds times a positive factor."""
        return WireWork(self.one_way.scaled(factor), self.both_ways.scaled(factor))

    def seconds(self, sent: ArrayLike, received: ArrayLike) -> FloatArray:
        """Of an exchange that sends and receives so many bytes; zero where it does neither."""
        more, less = np.maximum(sent, received), np.minimum(sent, received)
        extra = np.maximum(self.both_ways(less) - self.one_way(less), 0.0)
        return np.asarray(np.where(more > 0, self.one_way(more) + np.where(less > 0, extra, 0.0), 0.0))


@dataclass(frozen=True, slots=True)
class StepCurves:
    """One rank's measured seconds.

    load: making a rank's share of a round. outside_*: embedders, head and loss. block_*: one layer without attention.
    whole: attention of segments of all heads. units: of single heads, as tiles are. attend_s: what attention of a layer
    takes beside its kernels, in each pass. shared_s: what else a layer takes in each pass on a rank that shares a
    sequence. node, across: exchanges between ranks of a node, and of different nodes. message_s: each further peer of
    an exchange. hidden: share of an exchange that local attention hides while both run. wander: what ranks wait at a
    meeting although they do the same, over the root of the seconds since the last one; what disturbs them comes at
    random, so they drift apart like a random walk. reduce_s: summing all gradients over `reduced_by` ranks, their norm
    included. update: optimizer and averages, over parameters. round_s, step_s: what else each round and each step
    takes. around_s: what steps were seen to take beyond all of this. wire_cpu, reduce_cpu: share of their seconds that
    a processor of the rank is busy. width, heads: the model. text_first: do captions precede visual tokens. sharded: do
    blocks gather their parameters in these seconds.
    """

    load: TokenWork
    outside_forward: TokenWork
    outside_backward: TokenWork
    block_forward: TokenWork
    block_recompute: TokenWork
    block_backward: TokenWork
    whole: KernelWork
    units: KernelWork
    copies: CopyWork
    node: WireWork
    across: WireWork
    attend_s: float
    shared_s: float
    message_s: float
    hidden: float
    wander: float
    reduce_s: float
    reduced_by: int
    update: Curve
    parameters: int
    round_s: float
    step_s: float
    width: int
    heads: int
    around_s: float = 0.0
    wire_cpu: float = 1.0
    reduce_cpu: float = 1.0
    text_first: bool = True
    sharded: bool = False

    def layer_s(self, tokens: float, text: float) -> float:
        """Token-wise seconds of one layer, all passes, of one piece."""
        works = (self.block_forward, self.block_recompute, self.block_backward)
        return float(sum(work.seconds(tokens, text, 1) for work in works))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the YAML form."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


_WHOLE = ("parameters", "reduced_by", "width", "heads")
_parts: dict[str, Any] = {
    **dict.fromkeys(
        ("load", "outside_forward", "outside_backward", "block_forward", "block_recompute", "block_backward"), TokenWork
    ),
    **dict.fromkeys(("whole", "units"), KernelWork),
    "copies": CopyWork,
    **dict.fromkeys(("node", "across"), WireWork),
    "update": Curve,
}


def mean_step_curves(several: Sequence[StepCurves]) -> StepCurves:
    """The mean of what equal ranks measured; counts are those of the first."""
    return StepCurves(**{f.name: _mean(f.name, [getattr(c, f.name) for c in several]) for f in fields(StepCurves)})


def _mean(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Curve):
        return mean_curve(values)
    if isinstance(first, Surface):
        return mean_surface(values)
    if isinstance(first, TokenWork | KernelWork | CopyWork | WireWork):
        return type(first)(**{f.name: _mean(f.name, [getattr(v, f.name) for v in values]) for f in fields(first)})
    return first if name in _WHOLE or isinstance(first, bool) else sum(values) / len(values)


def parse_step_curves(where: str, value: Any) -> StepCurves:
    """The curves of plain values; raises ConfigError with the key and what is wrong."""
    names = {f.name for f in fields(StepCurves)}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a mapping of keys, it is {type(value).__name__}")
    check_keys(where, value, names, set())
    out: dict[str, Any] = {}
    for name in names:
        at, given = f"{where}.{name}", value[name]
        part = _parts.get(name)
        if part is None:
            out[name] = _scalar(at, name, given)
        elif part is Curve:
            out[name] = Curve.from_list(at, given)
        else:
            out[name] = _part(at, part, given)
    return StepCurves(**out)


def _part(where: str, part: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a mapping of keys, it is {type(value).__name__}")
    check_keys(where, value, {f.name for f in fields(part)}, set())
    out: dict[str, Any] = {}
    for f in fields(part):
        at, given = f"{where}.{f.name}", value[f.name]
        if f.type == "Curve":
            out[f.name] = Curve.from_list(at, given)
        elif f.type == "Surface":
            out[f.name] = Surface.from_dict(at, given)
        else:
            out[f.name] = _scalar(at, f.name, given)
    return part(**out)


def _scalar(where: str, name: str, value: Any) -> Any:
    if name in ("text_first", "sharded"):
        return bool(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{where} must be a finite number of at least 0, got {value!r}")
    return int(value) if name in _WHOLE else float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Curve):
        return value.to_list()
    if isinstance(value, Surface):
        return value.to_dict()
    if isinstance(value, TokenWork | KernelWork | CopyWork | WireWork):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value
