"""The feed: one thread that hands events to the sinks of a run, so that training never waits for any of them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence

from zellige_ray.monitor.events import Event, HeldOutEvent, StepEvent
from zellige_ray.monitor.sinks.sink import Open, Sink, SinkRun

MAX_WAITING = 10_000  # events; past it the newest are left out, and that is said
INTERVAL_S = 0.5  # between writes, so that many fast steps cost one
CLOSE_TIMEOUT_S = 10.0


class Feed:
    """`see` costs the caller a microsecond. A sink that fails is left out from then on; `warnings` says so.

    Steps ascend for every sink: one that is replayed after a rewind is not told again.
    """

    def __init__(self, run: SinkRun, openers: Mapping[str, Open], interval_s: float = INTERVAL_S) -> None:
        self._run, self._openers, self._interval_s = run, openers, interval_s
        self._waiting: queue.Queue[Event] = queue.Queue(MAX_WAITING)
        self._warnings: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._last: dict[type[Event], int] = {}
        self._closing = threading.Event()
        self._arrived = threading.Event()
        self._lost = 0
        self._thread = threading.Thread(target=self._live, name="zellige-sinks", daemon=True)
        if openers:
            self._thread.start()

    def see(self, event: Event) -> None:
        """Hands an event over."""
        if not self._openers or self._closing.is_set():
            return
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._lost += 1
            if self._lost == 1:
                self._warnings.put(
                    f"sinks are more than {MAX_WAITING} events behind: what they miss is in metrics.jsonl"
                )
        self._arrived.set()

    def warnings(self) -> list[str]:
        """What went wrong since the last call, in words."""
        out = []
        while not self._warnings.empty():
            out.append(self._warnings.get())
        return out

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Writes what is waiting and closes all sinks, within `timeout_s`."""
        self._closing.set()
        self._arrived.set()
        if self._openers:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._warnings.put(f"sinks took longer than {timeout_s:.0f} s to close and were left behind")

    def _live(self) -> None:
        live: dict[str, Sink] = {}
        for name, opener in self._openers.items():
            try:
                live[name] = opener(self._run)
            except Exception as fault:  # noqa: BLE001  (anything that another library raises)
                self._fail(name, fault)
        while not self._closing.is_set():
            self._arrived.wait()
            self._arrived.clear()
            self._write(live)
            self._closing.wait(self._interval_s)
        self._write(live)
        for name, sink in live.items():
            try:
                sink.close()
            except Exception as fault:  # noqa: BLE001
                self._fail(name, fault)

    def _write(self, live: dict[str, Sink]) -> None:
        events = self._ascending(self._take())
        for name, sink in list(live.items()) if events else []:
            try:
                sink.write(events)
            except Exception as fault:  # noqa: BLE001
                del live[name]
                self._fail(name, fault)

    def _take(self) -> list[Event]:
        out: list[Event] = []
        while True:
            try:
                out.append(self._waiting.get_nowait())
            except queue.Empty:
                return out

    def _ascending(self, events: Sequence[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            if isinstance(event, StepEvent | HeldOutEvent):
                if event.step <= self._last.get(type(event), -1):
                    continue
                self._last[type(event)] = event.step
            out.append(event)
        return out

    def _fail(self, name: str, fault: Exception) -> None:
        text = f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
        self._warnings.put(f"the sink {name} is left out from now on, training goes on: {text}")
