"""Scalars: an event as named numbers at a step, for sinks that keep curves. The names are stable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from zellige_ray.monitor.events import Event, HeldOutEvent, RatesEvent, StepEvent
from zellige_ray.monitor.figures import flops_per_s, hfu


class Scalars:
    """Remembers the peak of a rank, which HFU needs."""

    def __init__(self) -> None:
        self._peak_flops = 0.0

    def of(self, events: Iterable[Event]) -> Iterator[tuple[int, dict[str, float]]]:
        """(step, values) of every event that has numbers; what is not finite is left out."""
        for event in events:
            if isinstance(event, RatesEvent):
                self._peak_flops = event.peak_flops
            elif isinstance(event, HeldOutEvent):
                yield event.step, _finite({"loss/held_out": event.loss})
            elif isinstance(event, StepEvent):
                yield event.step, _finite(self._step(event))

    def _step(self, s: StepEvent) -> dict[str, float]:
        loads_s = [m.linear_s + m.attention_s for m in s.measured]
        total_s = sum(m.linear_s + m.attention_s + m.exchange_s + m.idle_s for m in s.measured)
        mean_s = sum(loads_s) / len(loads_s) if loads_s else 0.0
        achieved, share = flops_per_s([s]), hfu([s], self._peak_flops)
        return {
            "loss/train": s.loss,
            "optimizer/grad_norm": s.grad_norm,
            "optimizer/lr": s.lr,
            "rate/tokens_per_s": s.tokens / s.seconds if s.seconds > 0 else math.nan,
            "rate/samples_per_s": s.samples / s.seconds if s.seconds > 0 else math.nan,
            "rate/flops_per_s": math.nan if achieved is None else achieved,
            "rate/hfu": math.nan if share is None else share,
            "step/seconds": s.seconds,
            "step/predicted_s": s.predicted_s,
            "step/lower_bound_s": s.lower_bound_s,
            "step/plan_s": s.plan_s,
            "step/prediction_error": s.seconds / s.predicted_s - 1 if s.predicted_s > 0 else math.nan,
            "ranks/idle_share": sum(m.idle_s for m in s.measured) / total_s if total_s > 0 else math.nan,
            "ranks/imbalance": max(loads_s) / mean_s if mean_s > 0 else math.nan,
            "ranks/memory_bytes_max": float(max((m.rss_bytes for m in s.measured), default=0)),
            "run/epoch": float(s.epoch),
            "run/workers": float(s.world_size),
        }


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in values.items() if math.isfinite(v)}
