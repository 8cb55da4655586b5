"""The driver in its own process: it writes the run folder's files and keeps its events for whoever watches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zellige_ray.actors.driver import Driver
from zellige_ray.actors.ray_pool import RayPool
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.environment import write_environment
from zellige_ray.monitor.events import Event
from zellige_ray.monitor.metrics import JsonLines
from zellige_ray.monitor.report import write_report

if TYPE_CHECKING:
    from zellige_ray.actors.launch import Prepared


class DriverHost:
    """One run; `events` and `stop` are called on a lane of their own while it goes."""

    def __init__(self, prepared: Prepared, use_gpu: bool) -> None:
        self._folder, self._events = prepared.folder, list[Event]()
        write_environment(prepared.folder)
        self._sink = JsonLines(prepared.folder / run_folder.METRICS)
        self._driver = Driver(
            prepared.config,
            prepared.folder,
            RayPool(prepared.config, str(prepared.cache), use_gpu),
            prepared.train,
            prepared.held_out,
            prepared.text_dim,
            prepared.start,
            self._emit,
        )

    def run(self) -> dict[str, Any]:
        """Runs to the end, then writes summary and report."""
        try:
            summary = self._driver.run()
        finally:
            self._sink.close()
        text = json.dumps(summary, indent=1, allow_nan=False)
        (self._folder / run_folder.SUMMARY).write_text(text, encoding="utf-8")
        write_report(self._folder)
        return summary

    def events(self, seen: int) -> list[Event]:
        """The events after the first `seen` ones."""
        return self._events[seen:]

    def stop(self) -> None:
        """Asks the run to end after the step in flight."""
        self._driver.stop()

    def _emit(self, event: Event) -> None:
        self._sink.see(event)
        self._events.append(event)
