"""The pace of a profile: turns that all ranks take together, as many as the slowest can afford."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from zellige_ray.attention.comm import Comm

MIN_REPEATS, MAX_REPEATS = 2, 15

Progress = Callable[[float], None]


def usual(seconds: Sequence[float]) -> float:
    """What something takes by its repeats: the median, the lower one of two in the middle."""
    return statistics.median_low(seconds)


class Pace:
    """Turns that all ranks take together: a sharded state meets inside of blocks, and curves want equal points."""

    def __init__(self, comm: Comm | None, device: torch.device) -> None:
        self._comm, self._device = comm, device

    def slowest(self, seconds: float) -> float:
        """The most that any rank says."""
        if self._comm is None or self._comm.size == 1:
            return seconds
        told = torch.tensor([seconds], dtype=torch.float64, device=self._device)
        return float(self._comm.all_reduce(told, op="max").wait())

    def repeat(self, probes: Sequence[Callable[[], Any]], budget_s: float, progress: Progress) -> list[list[Any]]:
        """The results of each probe, run in turn while the budget lasts, MIN_REPEATS times at least.

        The first turn warms up and counts: what it takes longer than the next ones is no `usual` time.
        """
        results: list[list[Any]] = [[] for _ in probes]
        began = time.perf_counter()
        for turn in itertools.count(1):
            turn_began = time.perf_counter()
            for probe, out in zip(probes, results, strict=True):
                out.append(probe())
            last, spent = time.perf_counter() - turn_began, time.perf_counter() - began
            progress(min(1.0, spent / budget_s))
            if turn >= MAX_REPEATS or (self.slowest(spent + last) > budget_s and turn >= MIN_REPEATS):
                return results
        return results
