"""Events: what the driver says about a run, as frozen values that go to JSON and back.

One event is one line of `metrics.jsonl`, with its type under the key `kind`. A field named `pass_` is `pass` in JSON.
A figure that is not finite is null in JSON, because NaN is no JSON, and NaN again when read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from zellige_ray.placement.plan import RankLoad


@dataclass(frozen=True, slots=True)
class RankTimes:
    """What one rank was measured to do in a step. Units: seconds, tokens, bytes.

    rss_bytes: most resident memory of its process. peak_bytes: most memory of the step, to be compared with the rank's
    limit: of its GPU's tensors, or of its process beyond what that had before its model; 0 where nobody measured.
    """

    rank: int
    linear_s: float
    attention_s: float
    exchange_s: float
    idle_s: float
    tokens: int
    rss_bytes: int
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PhaseEvent:
    """Long work before the first step: `encode`, `workers`, `profile`."""

    name: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class RatesEvent:
    """What one rank can do. Units: FLOP/s, bytes.

    peak_flops: what HFU is measured against, 0 where nobody set it. memory_bytes: what the fullest rank may hold.
    """

    linear_flops: float
    attention_flops: float
    peak_flops: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One committed step.

    tokens, samples, images, videos: of this global batch. tokens_left: visual tokens until the last step, estimated.
    seconds: from dispatch to commit. plan_s: time of planning. predicted_s, lower_bound_s: the plan's verdict.
    started: when its workers began, Unix seconds; of the last attempt, where one was broken.
    flops: floating-point operations of all ranks, recomputation included; 0 where nobody counted them.
    """

    step: int
    pass_: int
    epoch: int
    world_size: int
    loss: float
    grad_norm: float
    lr: float
    images: int
    videos: int
    samples: int
    tokens: int
    tokens_left: int
    seconds: float
    plan_s: float
    predicted_s: float
    lower_bound_s: float
    plan_hash: str
    planned: tuple[RankLoad, ...]
    measured: tuple[RankTimes, ...]
    started: float = 0.0
    flops: float = 0.0


@dataclass(frozen=True, slots=True)
class HeldOutEvent:
    """The loss on the samples that training never sees."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class PreviewEvent:
    """Pictures made from the model as it is; files are relative to the run folder."""

    step: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointEvent:
    """A complete checkpoint was written."""

    step: int
    path: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MembershipEvent:
    """A worker joined or left, and what that cost. lost_s: seconds of broken work. replayed: samples run again."""

    step: int
    epoch: int
    change: Literal["joined", "left"]
    worker: str
    reason: str
    lost_s: float
    replayed: int


@dataclass(frozen=True, slots=True)
class NoteEvent:
    """Something a person should know."""

    level: Literal["info", "warning"]
    text: str


@dataclass(frozen=True, slots=True)
class ComparisonEvent:
    """Policies timed on the same batches, interleaved: name -> (measured, predicted) seconds per step.

    The first name is the policy of the run.
    """

    batches: int
    policies: dict[str, tuple[float, float]]


Event = (
    PhaseEvent
    | RatesEvent
    | StepEvent
    | HeldOutEvent
    | PreviewEvent
    | CheckpointEvent
    | MembershipEvent
    | NoteEvent
    | ComparisonEvent
)

kinds: dict[str, type[Event]] = {
    "phase": PhaseEvent,
    "rates": RatesEvent,
    "step": StepEvent,
    "held_out": HeldOutEvent,
    "preview": PreviewEvent,
    "checkpoint": CheckpointEvent,
    "membership": MembershipEvent,
    "note": NoteEvent,
    "comparison": ComparisonEvent,
}

_name_of = {event: name for name, event in kinds.items()}


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON values, its type under `kind`."""
    return {"kind": _name_of[type(event)], **_plain_fields(event)}


def from_json(value: Mapping[str, Any]) -> Event:
    """The event of a JSON value; raises ValueError where the kind or a field is unknown or missing."""
    kind = value.get("kind")
    if kind not in kinds:
        raise ValueError(f"unknown event kind {kind!r}, known are {', '.join(kinds)}")
    event = kinds[kind]
    try:
        given = {k: v for k, v in value.items() if k != "kind"}
        known = {f.name.rstrip("_"): f for f in fields(event)}
        return event(**{known[k].name: _field(known[k].type, known[k].name, v) for k, v in given.items()})
    except (KeyError, TypeError) as fault:
        raise ValueError(f"malformed {kind} event: {type(fault).__name__} {fault}") from fault


def _plain_fields(value: Any) -> dict[str, Any]:
    return {f.name.rstrip("_"): _plain(getattr(value, f.name)) for f in fields(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple):
        return [_plain(x) for x in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return _plain_fields(value) if isinstance(value, RankLoad | RankTimes) else value


def _field(annotation: Any, name: str, value: Any) -> Any:
    """The Python value of a JSON value, by the field it goes into."""
    if name == "planned":
        return tuple(_row(RankLoad, row) for row in value)
    if name == "measured":
        return tuple(_row(RankTimes, row) for row in value)
    if name == "policies":
        return {policy: (_number(pair[0]), _number(pair[1])) for policy, pair in value.items()}
    if name == "files":
        return tuple(value)
    return _number(value) if annotation == "float" else value


def _row(row_type: type[Any], row: Mapping[str, Any]) -> Any:
    return row_type(**{k: _number(v) if k.endswith("_s") else v for k, v in row.items()})


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
