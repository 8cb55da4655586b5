"""The saver: checkpoints that a worker writes in the background, sealed by the driver when all is on the disk.

A checkpoint that can't be written is a warning with the figures; training goes on with the last complete one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zellige_ray.actors.crew import Crew
from zellige_ray.actors.messages import Decision, Saving
from zellige_ray.errors import CheckpointError
from zellige_ray.monitor.events import CheckpointEvent, NoteEvent
from zellige_ray.training import checkpoint_files
from zellige_ray.training.checkpoint_files import Position

POLL_S = 0.02
ASK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Flight:
    """One checkpoint on its way."""

    worker: str
    partial: Path
    position: Position
    num_bytes: int
    began: float


class Saver:
    """At most one checkpoint is in flight. step: of the newest complete one, or where the run began."""

    def __init__(self, folder: Path, keep: int, step: int, emit: Callable[[CheckpointEvent | NoteEvent], None]) -> None:
        self._folder, self._keep, self._emit = folder, keep, emit
        self.step = step
        self.fault: str | None = None
        self._flight: _Flight | None = None

    def begin(self, crew: Crew, decided: Decision, position: Position) -> None:
        """Starts a checkpoint of the decided step, unless one of it is there or on its way."""
        if self._flight is not None:
            self.poll(crew)
        if self._flight is not None or position.step == self.step:
            return
        began = time.perf_counter()
        try:
            partial = checkpoint_files.partial_folder(self._folder, position.step)
            worker, saving = crew.one(0, "save", (str(partial), decided))
        except (OSError, CheckpointError) as fault:
            self._failed(position.step, 0, fault)
            return
        self._flight = _Flight(worker, partial, position, saving.num_bytes, began)

    def poll(self, crew: Crew) -> bool:
        """Looks after the checkpoint in flight; True when none is any more."""
        flight = self._flight
        if flight is None:
            return True
        answer = crew.ask(flight.worker, "saving", ASK_TIMEOUT_S)
        if isinstance(answer, Saving) and not answer.done and not answer.error:
            return False
        self._flight = None
        if isinstance(answer, Saving) and answer.done:
            self._seal(flight)
        elif isinstance(answer, Saving):
            self._drop(flight, CheckpointError(answer.error))
        else:
            self._drop(flight, CheckpointError(f"{flight.worker}, which wrote it, is gone"))
        return True

    def finish(self, crew: Crew, timeout_s: float) -> None:
        """Waits for the checkpoint in flight."""
        end = time.monotonic() + timeout_s
        while not self.poll(crew):
            if time.monotonic() > end and self._flight is not None:
                flight, self._flight = self._flight, None
                self._drop(flight, CheckpointError(f"it was not written within {timeout_s:.0f} s"))
            time.sleep(POLL_S)

    def _seal(self, flight: _Flight) -> None:
        try:
            path = checkpoint_files.seal(flight.partial, flight.position)
            checkpoint_files.prune(self._folder, self._keep)
        except (OSError, CheckpointError) as fault:
            self._drop(flight, fault)
            return
        self.step, self.fault = flight.position.step, None
        seconds = time.perf_counter() - flight.began
        self._emit(CheckpointEvent(self.step, str(path.relative_to(self._folder)), seconds))

    def _drop(self, flight: _Flight, fault: Exception) -> None:
        shutil.rmtree(flight.partial, ignore_errors=True)
        self._failed(flight.position.step, flight.num_bytes, fault)

    def _failed(self, step: int, num_bytes: int, fault: Exception) -> None:
        size = f"it needs {num_bytes / 1e6:.1f} MB, " if num_bytes else ""
        self.fault = (
            f"no checkpoint of step {step}: {fault} ({size}{checkpoint_files.room(self._folder)}); "
            f"the newest complete one is of step {self.step}"
        )
        self._emit(NoteEvent("warning", f"{self.fault}; training goes on"))
