"""The driver in its own process: it writes the run folder's files and keeps its events for whoever watches.

Ray starts it again when it dies; then it finds its memory in the run folder. This path imports neither torch, diffusers
nor numba, because a run stands still for as long as it takes.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import ray

from zellige_ray.actors.backlog import Backlog
from zellige_ray.actors.driver import Driver
from zellige_ray.actors.lease import Lease
from zellige_ray.actors.memory import Memory, remember
from zellige_ray.actors.prepared import DRIVER, Prepared
from zellige_ray.actors.ray_pool import RayPool
from zellige_ray.actors.session import end_actors
from zellige_ray.actors.watch import Watch
from zellige_ray.files import write_file
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.environment import write_environment
from zellige_ray.monitor.events import Event, NoteEvent
from zellige_ray.monitor.metrics import JsonLines
from zellige_ray.monitor.report import write_report

LAST_WORDS_S = 6.0  # from the end of the lease: for the step in flight and a checkpoint
POLL_S = 0.1


class DriverHost:
    """One run; `events` is called on a lane of its own while it goes."""

    def __init__(self, prepared: Prepared, use_gpu: bool) -> None:
        self._prepared = prepared
        folder = prepared.folder
        memory: Memory | None = None
        if ray.get_runtime_context().was_current_actor_reconstructed:
            memory = remember(folder, prepared.token, prepared.events_before)
        self._events = Backlog(memory.history if memory is not None else ())
        write_environment(folder)
        self._sink = JsonLines(folder / run_folder.METRICS)
        self._sink_fails = self._done = False
        self._watch = Watch(prepared)
        for event in self._watch.open():
            self._emit(event)
        for note in prepared.notes if memory is None else ():
            self._emit(note)
        self._driver = Driver(
            prepared.config,
            folder,
            RayPool(prepared, use_gpu),
            prepared.train,
            prepared.held_out,
            prepared.text_dim,
            prepared.start,
            self._emit,
            prepared.token,
            memory,
        )
        self._lease = Lease(prepared.config.workers.lease_s, self._abandoned)

    def run(self) -> dict[str, Any]:
        """Runs to the end, then writes summary and report."""
        try:
            summary = self._driver.run()
        finally:
            self._done = True
            for event in self._watch.close():
                self._emit(event)
            self._sink.close()
        folder = self._prepared.folder
        try:
            write_file(folder / run_folder.SUMMARY, json.dumps(summary, indent=1, allow_nan=False))
            write_report(folder)
        except OSError as fault:  # a full disk, after all steps
            text = f"no summary or report: {fault.strerror or fault}; `zellige report {folder}` writes it later"
            self._events.add(NoteEvent("warning", text))
        return summary

    def events(self, seen: int, stop: bool) -> list[Event]:
        """The events after the first `seen` ones; `stop` asks the run to end after the step in flight."""
        self._lease.renew()
        if stop:
            self._driver.stop()
        return self._events.after(seen)

    def pid(self) -> int:
        """The process that this is."""
        return os.getpid()

    def _emit(self, event: Event) -> None:
        try:
            self._sink.see(event)
        except OSError:  # a full disk: the saver and the ledger say so
            self._sink_fails = True
        self._events.add(event)
        for more in self._watch.see(event):
            self._emit(more)

    def _abandoned(self) -> None:
        """Nobody watches any more: a checkpoint if it can be had soon, then nothing of this run may stay."""
        self._driver.stop()
        end = time.monotonic() + LAST_WORDS_S
        while not self._done and time.monotonic() < end:
            time.sleep(POLL_S)
        end_actors(self._prepared, DRIVER)
