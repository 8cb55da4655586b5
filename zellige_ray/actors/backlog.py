"""The backlog: events of a launch that nobody has fetched yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice

from zellige_ray.monitor.events import Event


class Backlog:
    """Events are numbered from the launch on. Whoever asks says how many it has; these are forgotten.

    So it holds what happened between two questions, however long a run is. Any thread.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._lock = threading.Lock()
        self._events = deque(events)
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: Event) -> None:
        """The newest one."""
        with self._lock:
            self._events.append(event)

    def after(self, seen: int) -> list[Event]:
        """The events after the first `seen` ones; a question that is asked again has the same answer."""
        with self._lock:
            while self._events and self._forgotten < seen:
                self._events.popleft()
                self._forgotten += 1
            return list(islice(self._events, max(0, seen - self._forgotten), None))
