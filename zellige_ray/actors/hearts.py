"""Hearts: pings to all workers from a thread of their own, and who has been silent for too long.

A ping is the driver's sign of life as much as the worker's: it renews the worker's lease.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_PAUSE_S = 0.1
PATIENCE, MOST, MEMORY_S, FEW = 3.0, 5.0, 20.0, 3


@dataclass(slots=True)
class _Heart:
    """The last answer, the last ping, and the ping in flight."""

    heard: float
    sent: float = 0.0
    ref: Any = None
    settled: bool = False


class Hearts:
    """Silence is counted from the last answer, to a ping or to a call. When this very process stood still, nobody is
    blamed for it.

    A starved machine is not a dead one: PATIENCE times the slowest answer of the last MEMORY_S, from any worker that
    has settled, is added to the time-out, which grows to MOST times itself. With quick answers it is as set, and FEW
    slow ones are no sign of starvation: a worker that imports or compiles something does not answer for a moment.
    """

    def __init__(
        self,
        interval_s: float,
        timeout_s: float,
        ping: Callable[[str], Any],
        answered: Callable[[list[Any]], Mapping[Any, bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """ping: sends one, returns a reference. answered: of the references that are done, was there an answer?"""
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._ping, self._answered, self._clock = ping, answered, clock
        self._hearts: dict[str, _Heart] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._last_beat = clock()
        self._latencies: deque[tuple[float, float]] = deque()

    @property
    def limit_s(self) -> float:
        """Silence for longer is death."""
        ordered = sorted(latency for _, latency in list(self._latencies))
        slowest = ordered[-1 - FEW] if len(ordered) > FEW else 0.0
        return self._timeout_s + min(PATIENCE * slowest, (MOST - 1) * self._timeout_s)

    def start(self) -> None:
        """Beats in a daemon thread until `close`."""
        threading.Thread(target=self._run, name="zellige-hearts", daemon=True).start()

    def close(self) -> None:
        """Stops."""
        self._over.set()

    def watch(self, worker: str) -> None:
        """Pings a worker from now on."""
        with self._lock:
            self._hearts.setdefault(worker, _Heart(self._clock()))

    def settle(self, worker: str) -> None:
        """A worker has started, which may keep it from answering: silence counts from now on.

        And so do its answers, which tell how quick this cluster is.
        """
        with self._lock:
            heart = self._hearts.get(worker)
            if heart is not None:
                heart.settled = True
                heart.heard = heart.sent = self._clock()

    def hear(self, worker: str) -> None:
        """A worker has answered a call, which is as good as a ping."""
        with self._lock:
            if worker in self._hearts:
                self._hearts[worker].heard = self._clock()

    def forget(self, worker: str) -> None:
        """Pings a worker no more."""
        with self._lock:
            self._hearts.pop(worker, None)

    def silent(self, worker: str) -> str | None:
        """Why a worker counts as dead; None while it does not."""
        with self._lock:
            heart = self._hearts.get(worker)
        if heart is None:
            return None
        silence = self._clock() - heart.heard
        return f"no answer to pings for {silence:.1f} s" if silence > self.limit_s else None

    def beat(self) -> None:
        """Takes the answers that came, and sends the pings that are due."""
        now = self._clock()
        with self._lock:
            stood_still = now - self._last_beat > self._timeout_s / 2
            self._last_beat = now
            flying = {h.ref: h for h in self._hearts.values() if h.ref is not None}
            if stood_still:
                for heart in self._hearts.values():
                    heart.heard = max(heart.heard, now - self._interval_s)
        for ref, good in self._answered(list(flying)).items():
            flying[ref].ref = None
            if good:
                self._heard(flying[ref], now)
        with self._lock:
            due = [(w, h) for w, h in self._hearts.items() if h.ref is None and now - h.sent >= self._interval_s]
        for worker, heart in due:
            heart.ref, heart.sent = self._ping(worker), now

    def _heard(self, heart: _Heart, now: float) -> None:
        if heart.settled:
            self._latencies.append((now, now - heart.sent))
        while self._latencies and now - self._latencies[0][0] > MEMORY_S:
            self._latencies.popleft()
        heart.heard = now

    def _run(self) -> None:
        while not self._over.wait(min(self._interval_s / 2, MAX_PAUSE_S)):
            self.beat()
