"""History: what happened in a run so far, gathered event by event, and the figures that follow from it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from zellige_ray.monitor.events import (
    CheckpointEvent,
    ComparisonEvent,
    Event,
    HeldOutEvent,
    MembershipEvent,
    NoteEvent,
    PhaseEvent,
    PreviewEvent,
    RatesEvent,
    StepEvent,
)
from zellige_ray.monitor.figures import hfu, prediction_errors

WINDOW = 20  # steps behind a figure that says how things go now


@dataclass(frozen=True, slots=True)
class Load:
    """Mean work of one rank in a step, planned or measured. Units: seconds, tokens, bytes (peak planned, resident)."""

    rank: int
    linear_s: float
    attention_s: float
    exchange_s: float
    idle_s: float
    tokens: float
    memory_bytes: float

    @property
    def total_s(self) -> float:
        return self.linear_s + self.attention_s + self.exchange_s + self.idle_s


@dataclass(slots=True)
class History:
    """Events by kind, in the order in which they came; phases only by their latest state."""

    phases: dict[str, PhaseEvent] = field(default_factory=dict)
    steps: list[StepEvent] = field(default_factory=list)
    held_out: list[HeldOutEvent] = field(default_factory=list)
    previews: list[PreviewEvent] = field(default_factory=list)
    checkpoints: list[CheckpointEvent] = field(default_factory=list)
    memberships: list[MembershipEvent] = field(default_factory=list)
    notes: list[NoteEvent] = field(default_factory=list)
    comparison: ComparisonEvent | None = None
    rates: RatesEvent | None = None

    def see(self, event: Event) -> None:
        match event:
            case PhaseEvent():
                self.phases[event.name] = event
            case RatesEvent():
                self.rates = event
            case StepEvent():
                self.steps.append(event)
            case HeldOutEvent():
                self.held_out.append(event)
            case PreviewEvent():
                self.previews.append(event)
            case CheckpointEvent():
                self.checkpoints.append(event)
            case MembershipEvent():
                self.memberships.append(event)
            case NoteEvent():
                self.notes.append(event)
            case ComparisonEvent():
                self.comparison = event

    def recent(self, window: int = WINDOW) -> list[StepEvent]:
        """The last steps of the current epoch, at most `window`: steps of another world size say little about this."""
        last = self.steps[-window:]
        return [s for s in last if s.epoch == last[-1].epoch]

    def tokens_per_s(self) -> float:
        return _rate([(s.tokens, s.seconds) for s in self.recent()])

    def samples_per_s(self) -> float:
        return _rate([(s.samples, s.seconds) for s in self.recent()])

    def idle_share(self) -> float:
        """Measured share of the ranks' time in which they waited for others, 0..1."""
        ranks = [m for s in self.recent() for m in s.measured]
        total_s = sum(m.linear_s + m.attention_s + m.exchange_s + m.idle_s for m in ranks)
        return sum(m.idle_s for m in ranks) / total_s if total_s > 0 else 0.0

    def hfu(self) -> float | None:
        """Hardware FLOP utilization of the recent steps, see `figures.hfu`; None where FLOPs or peak are unknown."""
        return None if self.rates is None else hfu(self.recent(), self.rates.peak_flops)

    def prediction_error(self) -> float:
        """Median over the recent steps of measured over predicted time, minus one."""
        return statistics.median(prediction_errors(self.recent()) or [0.0])

    def planned(self) -> tuple[Load, ...]:
        """Mean planned load of every rank over the recent steps."""
        rows = [
            Load(p.rank, p.linear_s, p.attention_s, p.exchange_s, p.idle_s, p.tokens, p.peak_bytes)
            for s in self.recent()
            for p in s.planned
        ]
        return _mean_by_rank(rows)

    def measured(self) -> tuple[Load, ...]:
        """Mean measured load of every rank over the recent steps."""
        rows = [
            Load(m.rank, m.linear_s, m.attention_s, m.exchange_s, m.idle_s, m.tokens, m.rss_bytes)
            for s in self.recent()
            for m in s.measured
        ]
        return _mean_by_rank(rows)

    def figures(self) -> dict[str, Any]:
        """What the events say for `summary.json`; a figure that nothing was measured for is absent.

        gap_to_bound: mean over steps of predicted time over the lower bound, minus one. `_measured`: median of
        measured time instead. speedup_over_*: time of that policy over the first one's, on the same batches.
        """
        out: dict[str, Any] = {
            "steps": self.steps[-1].step if self.steps else 0,
            "images": sum(s.images for s in self.steps),
            "videos": sum(s.videos for s in self.steps),
            "tokens": sum(s.tokens for s in self.steps),
            "seconds": sum(s.seconds for s in self.steps),
            "replans": sum(e.change == "left" for e in self.memberships),
            "warnings": sum(n.level == "warning" for n in self.notes),
        }
        if self.held_out:
            first, last = self.held_out[0].loss, self.held_out[-1].loss
            out |= {"heldout_first": first, "heldout_last": last, "heldout_drop": 1 - last / first if first else 0.0}
        bounded = [s for s in self.steps if s.lower_bound_s > 0]
        if bounded:
            out["gap_to_bound"] = statistics.fmean(s.predicted_s / s.lower_bound_s - 1 for s in bounded)
            out["gap_to_bound_measured"] = statistics.median(s.seconds / s.lower_bound_s - 1 for s in bounded)
        if self.steps:
            out |= {"tokens_per_s": self.tokens_per_s(), "idle_share": self.idle_share()}
            share = None if self.rates is None else hfu(self.steps, self.rates.peak_flops)
            if share is not None and self.rates is not None:
                out |= {"hfu": share, "hfu_peak_flops": self.rates.peak_flops, "hfu_peak": self.rates.peak}
        return out | self._speedups()

    def _speedups(self) -> dict[str, float]:
        if self.comparison is None:
            return {}
        (_, own), *rivals = self.comparison.policies.items()
        return {f"speedup_over_{name}": pair[0] / own[0] for name, pair in rivals}


def _rate(pairs: list[tuple[int, float]]) -> float:
    seconds = sum(s for _, s in pairs)
    return sum(n for n, _ in pairs) / seconds if seconds > 0 else 0.0


def _mean_by_rank(rows: Iterable[Load]) -> tuple[Load, ...]:
    by_rank: dict[int, list[Load]] = {}
    for row in rows:
        by_rank.setdefault(row.rank, []).append(row)
    names = [n for n in Load.__slots__ if n != "rank"]
    return tuple(
        Load(rank, **{n: statistics.fmean(getattr(row, n) for row in group) for n in names})
        for rank, group in sorted(by_rank.items())
    )
