"""Calibration: measured phase times flow back into the curves that plans are made with, smoothly.

Three figures are followed, of token-wise work, attention and exchanges: measured seconds of all ranks over predicted,
as a median over the last steps, so that one slow step says nothing. Curves change only when a figure has moved enough
to matter, because plans change with them. What ranks differ in is for `speeds`; this is what they have in common.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zellige_ray.monitor.events import RankTimes
from zellige_ray.placement import HardwareProfile, Prediction
from zellige_ray.placement.step_curves import StepCurves

WINDOW, FEWEST = 9, 5  # steps that a figure looks back; that it needs
MOVED = 0.05  # smaller changes change nothing
LEAST_S = 1e-3  # phases that are shorter on all ranks together say nothing
DRIFT = 1.3  # factor to the profile beyond which a person is told
PHASES = {"linear": "token-wise work", "attention": "attention", "exchange": "exchanges"}


@dataclass(frozen=True, slots=True)
class Scale:
    """Measured over profiled seconds of each phase."""

    linear: float = 1.0
    attention: float = 1.0
    exchange: float = 1.0

    def apply(self, curves: StepCurves) -> StepCurves:
        """The curves of a profile as they are now."""
        works = ("load", "outside_forward", "outside_backward", "block_forward", "block_recompute", "block_backward")
        return replace(
            curves,
            **{name: getattr(curves, name).scaled(self.linear) for name in works},
            update=curves.update.scaled(self.linear),
            shared_s=curves.shared_s * self.linear,
            attend_s=curves.attend_s * self.attention,
            whole=curves.whole.scaled(self.attention),
            units=curves.units.scaled(self.attention),
            copies=curves.copies.scaled(self.exchange),
            node=curves.node.scaled(self.exchange),
            across=curves.across.scaled(self.exchange),
            message_s=curves.message_s * self.exchange,
            wander=curves.wander * self.exchange,
        )


class Calibration:
    """Follows the steps of one run; `hardware` is what plans are made with from now on."""

    def __init__(self, profiled: HardwareProfile) -> None:
        """profiled: without curves, as named presets are, nothing is followed."""
        self._profiled, self.scale, self.hardware = profiled, Scale(), profiled
        self._seen: dict[str, deque[float]] = {name: deque(maxlen=WINDOW) for name in PHASES}
        self._said = False

    def see(self, used: Scale, predicted: Prediction, measured: Sequence[RankTimes]) -> bool:
        """Takes one step into account; True when `hardware` changed.

        used: the scale that the step was predicted with.
        """
        if self._profiled.curves is None:
            return False
        for name, log in self._seen.items():
            total = min if name == "exchange" else sum  # who waits least for others shows what an exchange takes
            expected = total([getattr(load, f"{name}_s") for load in predicted.ranks])
            took = total([getattr(times, f"{name}_s") for times in measured])
            if expected > LEAST_S and took > LEAST_S and math.isfinite(took):
                log.append(math.log(took / expected * getattr(used, name)))
        found = {name: math.exp(statistics.median(log)) for name, log in self._seen.items() if len(log) >= FEWEST}
        moved = {n: s for n, s in found.items() if abs(s / getattr(self.scale, n) - 1) > MOVED}
        if not moved:
            return False
        self.scale = replace(self.scale, **moved)
        self.hardware = replace(self._profiled, curves=self.scale.apply(self._profiled.curves))
        return True

    def drift(self) -> str:
        """What a person should know of a device that is no longer as it was profiled; said once, empty otherwise."""
        far = {n: getattr(self.scale, n) for n in ("linear", "attention")}
        far = {n: s for n, s in far.items() if not 1 / DRIFT <= s <= DRIFT}
        if self._said or not far:
            return ""
        self._said = True
        figures = ", ".join(f"{PHASES[n]} takes {s:.2f} times" for n, s in far.items())
        return f"{figures} what the profile says; plans follow what is measured now"
