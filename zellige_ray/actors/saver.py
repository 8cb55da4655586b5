"""The saver: checkpoints that workers write in the background, sealed by the driver when all is on the disk.

A checkpoint that can't be written is a warning with the figures; training goes on with the last complete one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zellige_ray.actors.crew import Crew
from zellige_ray.actors.messages import Decision, Epoch, Saving
from zellige_ray.actors.mirror import Mirror
from zellige_ray.errors import CheckpointError
from zellige_ray.monitor.events import CheckpointEvent, NoteEvent
from zellige_ray.training import checkpoint_files
from zellige_ray.training.checkpoint_files import Position
from zellige_ray.training.layouts import Place

POLL_S = 0.02
ASK_TIMEOUT_S = 10.0
ASSEMBLE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Flight:
    """One checkpoint on its way."""

    workers: tuple[str, ...]
    partial: Path
    position: Position
    num_bytes: int
    began: float


class Saver:
    """At most one checkpoint is in flight. step: of the newest complete one, or where the run began."""

    def __init__(
        self,
        folder: Path,
        keep: int,
        step: int,
        emit: Callable[[CheckpointEvent | NoteEvent], None],
        layout: str = "replicated",
        to: str | None = None,
    ) -> None:
        """layout: of the state, which says who writes: those who share the first copy of it. to: see `Mirror`."""
        self._folder, self._keep, self._emit, self._layout = folder, keep, emit, layout
        self.mirror = Mirror(folder, to, keep, emit)
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
        partial = checkpoint_files.partial_name(self._folder, position.step)

        def orders(epoch: Epoch) -> dict[str, tuple[str, Decision, int]]:
            checkpoint_files.partial_folder(self._folder, position.step)
            writers = Place(self._layout, epoch.node_of_rank()).groups[0]
            return {epoch.workers[r]: (str(partial), decided, len(writers)) for r in writers}

        try:
            replies = crew.all("save", orders)
        except (OSError, CheckpointError) as fault:
            self._failed(position.step, 0, fault)
            return
        num_bytes = sum(reply.value.num_bytes for reply in replies.values())
        self._flight = _Flight(tuple(replies), partial, position, num_bytes, began)
        errors = [reply.value.error for reply in replies.values() if reply.value.error]
        if errors:
            self._drop(CheckpointError(errors[0]))

    def poll(self, crew: Crew) -> bool:
        """Looks after the checkpoint in flight; True when none is any more."""
        self.mirror.poll()
        flight = self._flight
        if flight is None:
            return True
        answers = [crew.ask(worker, "saving", ASK_TIMEOUT_S) for worker in flight.workers]
        lost = [w for w, a in zip(flight.workers, answers, strict=True) if not isinstance(a, Saving)]
        errors = [a.error for a in answers if isinstance(a, Saving) and a.error]
        if lost or errors:
            self._drop(CheckpointError(errors[0] if errors else f"{lost[0]}, which wrote it, is gone"))
        elif all(isinstance(a, Saving) and a.done for a in answers):
            self._seal(flight, crew)
        else:
            return False
        return True

    def finish(self, crew: Crew, timeout_s: float) -> None:
        """Waits for the checkpoint in flight."""
        end = time.monotonic() + timeout_s
        while not self.poll(crew):
            if time.monotonic() > end:
                self._drop(CheckpointError(f"it was not written within {timeout_s:.0f} s"))
            time.sleep(POLL_S)

    def _seal(self, flight: _Flight, crew: Crew) -> None:
        try:
            if len(flight.workers) > 1:
                self._assemble(flight, crew)
            path = checkpoint_files.seal(flight.partial, flight.position)
            self.mirror.take(path)
            checkpoint_files.prune(self._folder, self._keep, self.mirror.reads)
        except (OSError, CheckpointError) as fault:
            self._drop(fault)
            return
        self._flight = None
        self.step, self.fault = flight.position.step, None
        seconds = time.perf_counter() - flight.began
        self._emit(CheckpointEvent(self.step, str(path.relative_to(self._folder)), seconds))

    def _assemble(self, flight: _Flight, crew: Crew) -> None:
        answer = crew.ask(flight.workers[0], "assemble", ASSEMBLE_TIMEOUT_S, (str(flight.partial), len(flight.workers)))
        if answer != "":
            raise CheckpointError(answer or f"{flight.workers[0]}, which put it together, is gone")

    def _drop(self, fault: Exception) -> None:
        flight, self._flight = self._flight, None
        if flight is None:
            return
        shutil.rmtree(flight.partial, ignore_errors=True)
        self._failed(flight.position.step, flight.num_bytes, fault)

    def _failed(self, step: int, num_bytes: int, fault: Exception) -> None:
        size = f"it needs {num_bytes / 1e6:.1f} MB, " if num_bytes else ""
        self.fault = (
            f"no checkpoint of step {step}: {fault} ({size}{checkpoint_files.room(self._folder)}); "
            f"the newest complete one is of step {self.step}"
        )
        self._emit(NoteEvent("warning", f"{self.fault}; training goes on"))
