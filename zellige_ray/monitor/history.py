"""History: what happened in a run so far, gathered event by event, and the figures that follow from it.

Bounded where somebody watches: loads per rank are kept of the newest steps only, other events as many as asked.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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
from zellige_ray.monitor.figures import flops_per_s, hfu, prediction_errors

WINDOW = 20  # steps behind a figure that says how things go now
KEPT = 10_000  # events of a kind, for who watches a run as it goes


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
    """Events by kind, in the order in which they came; phases only by their latest state.

    A step that was run again counts once, with its last value. kept: newest events of a kind that stay; None: all.
    replays: (step that the run went back behind, the furthest that it had come to).
    """

    kept: int | None = None
    phases: dict[str, PhaseEvent] = field(default_factory=dict)
    steps: list[StepEvent] = field(default_factory=list)
    held_out: list[HeldOutEvent] = field(default_factory=list)
    previews: list[PreviewEvent] = field(default_factory=list)
    checkpoints: list[CheckpointEvent] = field(default_factory=list)
    memberships: list[MembershipEvent] = field(default_factory=list)
    notes: list[NoteEvent] = field(default_factory=list)
    comparison: ComparisonEvent | None = None
    rates: RatesEvent | None = None
    replays: list[tuple[int, int]] = field(default_factory=list)

    def see(self, event: Event) -> None:
        match event:
            case PhaseEvent():
                self.phases[event.name] = event
            case RatesEvent():
                self.rates = event
            case StepEvent():
                self._step(event)
            case HeldOutEvent():
                _rewind(self.held_out, event.step)
                self._keep(self.held_out, event)
            case PreviewEvent():
                self._keep(self.previews, event)
            case CheckpointEvent():
                self._keep(self.checkpoints, event)
            case MembershipEvent():
                self._keep(self.memberships, event)
            case NoteEvent():
                self._keep(self.notes, event)
            case ComparisonEvent():
                self.comparison = event

    def _step(self, event: StepEvent) -> None:
        if self.steps and self.steps[-1].step >= event.step:
            self._keep(self.replays, (event.step - 1, self.steps[-1].step))
            _rewind(self.steps, event.step)
        self._keep(self.steps, event)
        if len(self.steps) > WINDOW:  # loads are most of an event, and nobody asks for those of old steps
            self.steps[-WINDOW - 1] = replace(self.steps[-WINDOW - 1], planned=(), measured=())

    def _keep(self, events: list[Any], event: Any) -> None:
        events.append(event)
        if self.kept is not None and len(events) >= 2 * self.kept:
            del events[: -self.kept]

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

    def flops_per_s(self) -> float | None:
        """What a rank achieved over the recent steps, see `figures.flops_per_s`."""
        return flops_per_s(self.recent())

    def hfu(self) -> float | None:
        """Hardware FLOP utilization of the recent steps, see `figures.hfu`; None where no peak is set."""
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
            achieved = flops_per_s(self.steps)
            if achieved is not None:
                out["flops_per_s"] = achieved
            share = None if self.rates is None else hfu(self.steps, self.rates.peak_flops)
            if share is not None and self.rates is not None:
                out |= {"hfu": share, "hfu_peak_flops": self.rates.peak_flops}
        return out | self._speedups()

    def _speedups(self) -> dict[str, float]:
        if self.comparison is None:
            return {}
        (_, own), *rivals = self.comparison.policies.items()
        return {f"speedup_over_{name}": pair[0] / own[0] for name, pair in rivals}


def _rewind(events: list[Any], step: int) -> None:
    """Takes back what was said of `step` and later ones."""
    while events and events[-1].step >= step:
        events.pop()


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
