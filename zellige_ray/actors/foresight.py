"""Foresight: what plans count with, found as a run begins, corrected by what its steps take, kept for the next run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from zellige_ray.actors.calibration import Calibration
from zellige_ray.actors.crew import Crew
from zellige_ray.actors.memory import write_hardware
from zellige_ray.actors.memory_guard import MemoryGuard
from zellige_ray.actors.messages import Epoch
from zellige_ray.actors.planning import Planned, Planner
from zellige_ray.actors.rates import describe, find_rates
from zellige_ray.actors.weighed import find_memory
from zellige_ray.config import RunConfig
from zellige_ray.models.specs import ModelSpec
from zellige_ray.monitor.events import Event, NoteEvent, RankTimes
from zellige_ray.placement import HardwareProfile


class Foresight:
    """Rates, speeds, memory, and the planner that is made with them. `look` comes first."""

    planner: Planner

    def __init__(
        self, config: RunConfig, folder: Path, spec: ModelSpec, text_dim: int, crew: Crew, emit: Callable[[Event], None]
    ) -> None:
        """emit: is told what a person should know."""
        self._config, self._folder, self._spec, self._text_dim = config, folder, spec, text_dim
        self._crew, self._emit = crew, emit
        self._guard = MemoryGuard(config.placement.memory_margin, emit)

    def look(self, known: HardwareProfile | None) -> None:
        """Finds out what the workers can do. known: what an earlier driver of this run used.

        Raises Rewound and StateLost, as every call to all workers; then it is begun again.
        """
        config = self._config
        if known is not None and self._outgrown(known):
            known = None
        model = self._spec.preset(config.model, config.engine.dtype_bytes)
        self._rates = find_rates(config, model, self._text_dim, known, self._crew, self._say)
        hardware = self._rates.hardware
        if config.placement.hardware is None:
            hardware = replace(hardware, state=config.state.layout)
        memory = find_memory(config, self._folder, known, self._crew)
        self._calibration = Calibration(hardware)
        write_hardware(self._folder, hardware)
        policy = config.placement.policy
        self.planner = Planner(self._spec, model, hardware, self._rates.speeds, policy, self._guard, memory)

    @property
    def outdated(self) -> bool:
        """Is it to be found out again: by one rank alone, which has no wire, while there are more by now?"""
        return self._outgrown(self._rates.hardware)

    def describe(self) -> str:
        """What was found, for a person."""
        return describe(self._rates)

    def see(self, epoch: Epoch, planned: Planned, times: Sequence[RankTimes]) -> None:
        """A step was done: what it took flows back into the next plans, the next driver and the next run."""
        self._guard.see(epoch, times)
        predicted = planned.plan.predicted
        assert predicted is not None
        self.planner.speeds.see(epoch.workers, planned.speeds, predicted.ranks, times)
        calibration = self._calibration
        if not calibration.see(planned.scale, predicted, times):
            return
        self.planner.recalibrate(calibration.hardware, calibration.scale)
        write_hardware(self._folder, calibration.hardware)
        self._rates.keep(calibration.hardware)
        drift = calibration.drift()
        if drift:
            self._say("warning", drift)

    def _outgrown(self, hardware: HardwareProfile) -> bool:
        asked = self._config.placement
        if asked.hardware is not None or asked.profile is not None:
            return False
        return hardware.curves is not None and hardware.curves.reduced_by == 1 < self._crew.epoch.size

    def _say(self, level: Literal["info", "warning"], text: str) -> None:
        self._emit(NoteEvent(level, text))
