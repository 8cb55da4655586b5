"""The page's state: what a watcher is told about a run, bounded however long the run is."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zellige_ray.monitor.events import (
    CheckpointEvent,
    Event,
    HeldOutEvent,
    MembershipEvent,
    NoteEvent,
    PhaseEvent,
    PreviewEvent,
    RankTimes,
    RatesEvent,
    StepEvent,
)
from zellige_ray.monitor.figures import flops_per_s, hfu
from zellige_ray.monitor.history import WINDOW
from zellige_ray.monitor.members import Names, RankName
from zellige_ray.monitor.progress import membership_line
from zellige_ray.monitor.slowest import slowest
from zellige_ray.placement.plan import RankLoad

FORMAT = "zellige.page/1"
KEPT_STEPS = 10_000
KEPT_TOLD = 400
KEPT_PHASES = 16
SHOWN_POINTS = 1200  # of the kept steps, in one answer

FloatArray = NDArray[np.float64]


class Point(NamedTuple):
    """One step in the curves. at_s: Unix seconds. error: measured over predicted time, minus one."""

    step: int
    at_s: float
    loss: float
    seconds: float
    predicted_s: float
    lower_bound_s: float
    tokens_per_s: float
    error: float
    world_size: int


@dataclass(frozen=True, slots=True)
class About:
    """What does not change during a run."""

    name: str
    folder: Path
    steps: int
    model: str
    policy: str


class PageState:
    """Takes events, gives plain JSON values. Not for several threads: it belongs to the page's own."""

    def __init__(self, about: About) -> None:
        self.about = about
        self._names = Names(about.folder)
        self._points: deque[Point] = deque(maxlen=KEPT_STEPS)
        self._held_out: deque[tuple[int, float]] = deque(maxlen=KEPT_STEPS)
        self._told: deque[dict[str, Any]] = deque(maxlen=KEPT_TOLD)
        self._recent: deque[StepEvent] = deque(maxlen=WINDOW)
        self._phases: dict[str, PhaseEvent] = {}
        self._rates: RatesEvent | None = None

    @property
    def num_steps(self) -> int:
        """Steps that are kept."""
        return len(self._points)

    @property
    def plan(self) -> tuple[int, str]:
        """(step, hash) of the newest plan; (0, "") before the first."""
        return (self._recent[-1].step, self._recent[-1].plan_hash) if self._recent else (0, "")

    def see(self, event: Event, at_s: float) -> None:
        """at_s: when it happened, Unix seconds."""
        match event:
            case StepEvent():
                self._step(event, at_s)
            case HeldOutEvent(step, loss):
                self._held_out.append((step, loss))
            case RatesEvent():
                self._rates = event
            case PhaseEvent(name):
                self._phases = dict(
                    [*((k, v) for k, v in self._phases.items() if k != name), (name, event)][-KEPT_PHASES:]
                )
            case MembershipEvent() | NoteEvent() | CheckpointEvent() | PreviewEvent():
                self._told.append(_told(event, at_s))

    def full(self) -> dict[str, Any]:
        """All there is: what a watcher gets first, and `/state.json`."""
        about = self.about
        return {
            "format": FORMAT,
            "run": {
                "name": about.name,
                "folder": str(about.folder),
                "steps": about.steps,
                "model": about.model,
                "policy": about.policy,
            },
            **self.step(),
            "points": self._columns(),
            "held_out": [[step, _number(loss)] for step, loss in self._held_out],
            "told": list(self._told),
            "phases": [[p.name, p.done, p.total] for p in self._phases.values()],
        }

    def step(self) -> dict[str, Any]:
        """What a step changes: figures, loads, the point it adds; without a step only empty values."""
        if not self._recent:
            return {"now": None, "loads": None, "slowest": None, "point": None}
        last, planned_R4, measured_R4 = self._recent[-1], *self._means()
        ranks = [m.rank for m in last.measured]
        slow = slowest(ranks, planned_R4, measured_R4)
        return {
            "now": self._now(last, measured_R4),
            "loads": self._loads(last),
            "slowest": None if slow is None else _plain({k: getattr(slow, k) for k in slow.__slots__}),
            "point": [_number(x) for x in self._points[-1]],
        }

    def told(self) -> dict[str, Any]:
        """What events beside the steps change."""
        return {
            "told": self._told[-1] if self._told else None,
            "held_out": [[step, _number(loss)] for step, loss in list(self._held_out)[-1:]],
            "phases": [[p.name, p.done, p.total] for p in self._phases.values()],
        }

    def _step(self, event: StepEvent, at_s: float) -> None:
        while self._points and self._points[-1].step >= event.step:  # replayed from a checkpoint
            self._points.pop()
        if self._recent and (self._recent[-1].step >= event.step or self._recent[-1].epoch != event.epoch):
            self._recent.clear()
        self._recent.append(event)
        self._points.append(
            Point(
                event.step,
                round(at_s, 3),
                event.loss,
                event.seconds,
                event.predicted_s,
                event.lower_bound_s,
                event.tokens / event.seconds if event.seconds > 0 else math.nan,
                event.seconds / event.predicted_s - 1 if event.predicted_s > 0 else math.nan,
                event.world_size,
            )
        )

    def _means(self) -> tuple[FloatArray, FloatArray]:
        """Planned and measured seconds, rank by phase, mean of the recent steps."""
        planned = np.array([[_row(p) for p in s.planned] for s in self._recent], dtype=np.float64)
        measured = np.array([[_row(m) for m in s.measured] for s in self._recent], dtype=np.float64)
        measured_R4 = measured.reshape(len(self._recent), -1, 4).mean(axis=0)
        known = planned.shape == measured.shape
        return planned.mean(axis=0) if known else np.zeros_like(measured_R4), measured_R4

    def _now(self, last: StepEvent, measured_R4: FloatArray) -> dict[str, Any]:
        recent = list(self._recent)
        seconds, total_s = sum(s.seconds for s in recent), float(measured_R4.sum())
        errors = [p.error for p in list(self._points)[-len(recent) :] if math.isfinite(p.error)]
        rates = self._rates
        return _plain(
            {
                "step": last.step,
                "pass": last.pass_,
                "epoch": last.epoch,
                "world_size": last.world_size,
                "loss": last.loss,
                "grad_norm": last.grad_norm,
                "lr": last.lr,
                "images": last.images,
                "videos": last.videos,
                "seconds": last.seconds,
                "predicted_s": last.predicted_s,
                "lower_bound_s": last.lower_bound_s,
                "plan_s": last.plan_s,
                "plan_hash": last.plan_hash,
                "tokens_per_s": sum(s.tokens for s in recent) / seconds if seconds > 0 else 0.0,
                "samples_per_s": sum(s.samples for s in recent) / seconds if seconds > 0 else 0.0,
                "idle_share": float(measured_R4[:, 3].sum()) / total_s if total_s > 0 else 0.0,
                "prediction_error": float(np.median(errors)) if errors else None,
                "flops_per_s": flops_per_s(recent),
                "hfu": None if rates is None else hfu(recent, rates.peak_flops),
                "left_s": self._left_s(last),
                "at_s": self._points[-1].at_s,
            }
        )

    def _left_s(self, last: StepEvent) -> float | None:
        """Seconds until the last step, by tokens, at the pace of the recent steps on the wall clock."""
        first = self._points[-min(len(self._recent), len(self._points))]
        tokens, wall_s = sum(s.tokens for s in list(self._recent)[1:]), self._points[-1].at_s - first.at_s
        return last.tokens_left * wall_s / tokens if tokens > 0 and wall_s > 0 else None

    def _loads(self, last: StepEvent) -> dict[str, Any]:
        """Columns by rank, of the last step."""
        names = self._names.of(last.epoch, last.world_size)
        planned = {p.rank: p for p in last.planned}
        rows = [(m, planned.get(m.rank)) for m in last.measured]
        return {
            "rank": [m.rank for m, _ in rows],
            "node": [names[i].node if i < len(names) else "" for i in range(len(rows))],
            "worker": [names[i].worker if i < len(names) else "" for i in range(len(rows))],
            "planned": [None if p is None else [_number(v) for v in _row(p)] for _, p in rows],
            "measured": [[_number(v) for v in _row(m)] for m, _ in rows],
            "tokens": [m.tokens for m, _ in rows],
            "memory_bytes": [m.peak_bytes or m.rss_bytes for m, _ in rows],
            "planned_bytes": [None if p is None else p.peak_bytes for _, p in rows],
            "limit_bytes": [self._limit(names, i) for i in range(len(rows))],
        }

    def _limit(self, names: Sequence[RankName], rank: int) -> int | None:
        """What a rank may fill; that of the fullest one where its own is not known."""
        own = names[rank].memory_bytes if rank < len(names) else None
        return own if own is not None else None if self._rates is None else self._rates.memory_bytes

    def _columns(self) -> dict[str, list[Any]]:
        """The kept steps, thinned evenly to SHOWN_POINTS, the newest always there."""
        points = list(self._points)
        stride = max(1, math.ceil(len(points) / SHOWN_POINTS))
        shown = points[::-1][::stride][::-1]
        return {name: [_number(getattr(p, name)) for p in shown] for name in Point._fields}


def _told(event: MembershipEvent | NoteEvent | CheckpointEvent | PreviewEvent, at_s: float) -> dict[str, Any]:
    step: int | None = None
    match event:
        case MembershipEvent(step=step, change=change):
            kind, text = str(change), membership_line(event)
        case NoteEvent(level=level, text=note):
            kind, text = str(level), note
        case CheckpointEvent(step=step, path=path, seconds=seconds):
            kind, text = "checkpoint", f"{Path(path).name} in {seconds:.2f} s"
        case PreviewEvent(step=step, files=files):
            kind, text = "preview", ", ".join(Path(name).name for name in files)
    return {"at_s": round(at_s, 3), "kind": kind, "text": text, "step": step}


def _row(x: RankLoad | RankTimes) -> tuple[float, float, float, float]:
    return x.linear_s, x.attention_s, x.exchange_s, x.idle_s


def _number(value: float | None) -> float | int | None:
    """A figure as JSON: six significant digits; null when it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) or abs(value) > 1e6 else float(f"{value:.6g}")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: _number(v) if isinstance(v, float) else v for k, v in values.items()}
