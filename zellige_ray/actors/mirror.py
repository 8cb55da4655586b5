"""The mirror: complete checkpoints copied to a store in the background; what can't be copied is a warning."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from zellige_ray import urls
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import NoteEvent
from zellige_ray.training.remote_runs import copy_out

POLL_S = 0.05
BESIDE = (run_folder.CONFIG, run_folder.LEDGER)


class Mirror:
    """One checkpoint is copied at a time; of those that come meanwhile, the newest is next."""

    def __init__(self, run: Path, to: str | None, keep: int, emit: Callable[[NoteEvent], None]) -> None:
        """to: URL that holds the folders of runs; None copies nothing. keep: newest complete checkpoints there."""
        self._run, self._url, self._keep, self._emit = run, to and urls.join(to, run.name), keep, emit
        self._next: Path | None = None
        self._thread: threading.Thread | None = None
        self._copied: Path | None = None
        self._fault = ""

    @property
    def reads(self) -> tuple[Path, ...]:
        """The checkpoints that must stay until they are copied."""
        return tuple(path for path in (self._copied, self._next) if path is not None)

    def take(self, checkpoint: Path) -> None:
        """Copies a complete checkpoint, now or as soon as the one before is there."""
        if self._url is not None:
            self._next = checkpoint
            self.poll()

    def poll(self) -> bool:
        """Says what became of the copy on its way and starts the next; True when nothing is left to do."""
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._thread is not None:
            self._thread.join()
            self._tell()
        if self._next is None:
            return True
        self._copied, self._next = self._next, None
        self._thread = threading.Thread(target=self._copy, name="mirror", daemon=True)
        self._thread.start()
        return False

    def finish(self, timeout_s: float) -> None:
        """Waits until everything is there."""
        end = time.monotonic() + timeout_s
        while not self.poll():
            if time.monotonic() > end:
                self._warn(f"it was not copied within {timeout_s:.0f} s")
                return
            time.sleep(POLL_S)

    def _copy(self) -> None:
        assert self._url is not None and self._copied is not None
        try:
            copy_out(self._run, self._copied, self._url, self._keep, BESIDE)
        except OSError as fault:
            self._fault = str(fault)

    def _tell(self) -> None:
        if self._fault:
            self._warn(self._fault)
        self._thread, self._copied, self._fault = None, None, ""

    def _warn(self, why: str) -> None:
        name = self._copied.name if self._copied is not None else "the newest checkpoint"
        self._emit(NoteEvent("warning", f"{name} was not copied to checkpoint.to: {why}; training goes on"))
