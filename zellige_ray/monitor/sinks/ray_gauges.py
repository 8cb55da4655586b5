"""Ray gauges: the run as Prometheus metrics, exported by Ray beside its own. The monitor's one file that knows Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from zellige_ray.monitor.events import Event, HeldOutEvent, MembershipEvent, NoteEvent, RatesEvent, StepEvent
from zellige_ray.monitor.figures import flops_per_s, hfu
from zellige_ray.monitor.members import Names
from zellige_ray.monitor.sinks.names import names
from zellige_ray.monitor.sinks.sink import SinkRun


class RayGauges:
    """Of several steps in one call only the last is shown; counters count all.

    A rank that is gone reads 0 in every one of its series, because Ray keeps a series as long as the process lives.
    """

    def __init__(self, run: SinkRun) -> None:
        from ray.util.metrics import Counter, Gauge

        kinds = {"gauge": Gauge, "counter": Counter}
        self._metrics: dict[str, Any] = {
            name: kinds[one.kind](name, description=one.meaning, tag_keys=("run", *one.tags))
            for name, one in names.items()
        }
        for metric in self._metrics.values():
            metric.set_default_tags({"run": run.folder.name})
        self._names = Names(run.folder)
        self._rates: RatesEvent | None = None
        self._shown: set[tuple[str, str]] = set()  # (rank, node)

    def write(self, events: Sequence[Event]) -> None:
        steps = [e for e in events if isinstance(e, StepEvent)]
        for event in events:
            match event:
                case RatesEvent():
                    self._rates = event
                    self._set("zellige_rank_memory_limit_bytes", event.memory_bytes)
                case HeldOutEvent(loss=loss):
                    self._set("zellige_held_out_loss", loss)
                case MembershipEvent(change=change, lost_s=lost_s):
                    self._count("zellige_membership_changes", 1, {"change": change})
                    self._count("zellige_lost_seconds", lost_s)
                case NoteEvent(level="warning"):
                    self._count("zellige_warnings", 1)
        if steps:
            self._count("zellige_steps", len(steps))
            self._count("zellige_tokens", sum(s.tokens for s in steps))
            self._count("zellige_samples", sum(s.samples for s in steps))
            self._step(steps[-1])
            self._ranks(steps[-1])

    def close(self) -> None:
        """Ray exports what is set until the process ends."""

    def _step(self, s: StepEvent) -> None:
        achieved, share = flops_per_s([s]), None if self._rates is None else hfu([s], self._rates.peak_flops)
        values = {
            "zellige_loss": s.loss,
            "zellige_grad_norm": s.grad_norm,
            "zellige_learning_rate": s.lr,
            "zellige_step": s.step,
            "zellige_pass": s.pass_,
            "zellige_epoch": s.epoch,
            "zellige_workers": s.world_size,
            "zellige_tokens_per_second": s.tokens / s.seconds if s.seconds > 0 else math.nan,
            "zellige_samples_per_second": s.samples / s.seconds if s.seconds > 0 else math.nan,
            "zellige_prediction_error": s.seconds / s.predicted_s - 1 if s.predicted_s > 0 else math.nan,
            "zellige_flops_per_second": math.nan if achieved is None else achieved,
            "zellige_hfu": math.nan if share is None else share,
        }
        for name, value in values.items():
            self._set(name, value)
        kinds = {
            "measured": s.seconds,
            "predicted": s.predicted_s,
            "lower_bound": s.lower_bound_s,
            "planning": s.plan_s,
        }
        for kind, seconds in kinds.items():
            self._set("zellige_step_seconds", seconds, {"kind": kind})

    def _ranks(self, s: StepEvent) -> None:
        who = self._names.of(s.epoch, s.world_size)
        shown = set()
        for index, measured in enumerate(s.measured):
            tags = {"rank": str(measured.rank), "node": who[index].node if index < len(who) else ""}
            shown.add((tags["rank"], tags["node"]))
            self._set("zellige_rank_tokens", measured.tokens, tags)
            self._set("zellige_rank_memory_bytes", measured.rss_bytes, tags)
            self._phases(measured, tags, "measured")
            if index < len(s.planned):
                self._phases(s.planned[index], tags, "planned")
        for rank, node in self._shown - shown:
            self._gone({"rank": rank, "node": node})
        self._shown = shown

    def _phases(self, x: Any, tags: Mapping[str, str], kind: str) -> None:
        phases = {"linear": x.linear_s, "attention": x.attention_s, "exchange": x.exchange_s, "wait": x.idle_s}
        for phase, seconds in phases.items():
            self._set("zellige_rank_seconds", seconds, {**tags, "phase": phase, "kind": kind})

    def _gone(self, tags: Mapping[str, str]) -> None:
        self._set("zellige_rank_tokens", 0, tags)
        self._set("zellige_rank_memory_bytes", 0, tags)
        for phase in ("linear", "attention", "exchange", "wait"):
            for kind in ("planned", "measured"):
                self._set("zellige_rank_seconds", 0, {**tags, "phase": phase, "kind": kind})

    def _set(self, name: str, value: float, tags: Mapping[str, str] | None = None) -> None:
        if math.isfinite(value):
            self._metrics[name].set(float(value), dict(tags or {}))

    def _count(self, name: str, value: float, tags: Mapping[str, str] | None = None) -> None:
        if value > 0:
            self._metrics[name].inc(float(value), dict(tags or {}))
