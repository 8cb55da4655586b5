"""Speeds: how fast each worker computes, re-estimated from what its steps took; waiting never counts."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence

from zellige_ray.monitor.events import RankTimes
from zellige_ray.placement.plan import RankLoad

WINDOW = 3  # steps that an estimate looks back
EVEN = 0.15  # differences within 15 % are noise: speeds that are nearly 1 count as 1, small changes change nothing
SLOWEST = 1 / 16  # a worker is given work as if it were at least this fast, so that it can show more
RECOVERY = 1.25  # per step, for a worker that is given nothing to show its speed with


class Speeds:
    """Relative speeds by worker, 1.0 being the median. frozen: they came with a named profile and stay."""

    def __init__(self, first: Mapping[str, float], frozen: bool = False) -> None:
        self._speed, self._frozen = dict(first), frozen
        self._seen: dict[str, deque[tuple[float, float]]] = {}
        self.version = 0

    def of(self, worker: str) -> float:
        """The speed that plans are made with; 1.0 for a newcomer."""
        return self._speed.get(worker, 1.0)

    def see(
        self, workers: Sequence[str], used: Sequence[float], planned: Sequence[RankLoad], measured: Sequence[RankTimes]
    ) -> None:
        """Takes one step into account: the work that a plan gave each rank, and its compute time.

        used: the speeds that the plan was made with, so that predicted time x speed is work. Units: seconds.
        """
        if self._frozen:
            return
        self._seen = {w: self._seen.get(w, deque(maxlen=WINDOW)) for w in workers}
        loads = sorted(planned, key=lambda load: load.rank)
        for worker, speed, load, times in zip(workers, used, loads, measured, strict=True):
            work, seconds = (load.linear_s + load.attention_s) * speed, times.linear_s + times.attention_s
            if work > 0 and seconds > 0:
                self._seen[worker].append((work, seconds))
        rates = {w: sum(a for a, _ in s) / sum(b for _, b in s) for w, s in self._seen.items() if s}
        idle = {w for w, load in zip(workers, loads, strict=True) if load.linear_s + load.attention_s <= 0}
        if len(rates) > 1:
            self._update({w: r for w, r in rates.items() if w not in idle}, statistics.median(rates.values()), idle)

    def _update(self, rates: Mapping[str, float], middle: float, idle: set[str]) -> None:
        new = {w: max(SLOWEST, rate / middle) for w, rate in rates.items()}
        new |= {w: min(1.0, self.of(w) * RECOVERY) for w in idle}
        changed = {w: s for w, s in new.items() if abs(s / self.of(w) - 1) > EVEN}
        if changed:
            self._speed |= {w: 1.0 if abs(s - 1) <= EVEN else s for w, s in changed.items()}
            self.version += 1
