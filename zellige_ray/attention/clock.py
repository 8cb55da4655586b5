"""PhaseClock: seconds a rank spends in attention kernels, and in exchanging their operands, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

Phase = Literal["attention", "exchange"]


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds since the last reset. exchange_s: packing, posting, waiting, unpacking."""

    attention_s: float
    exchange_s: float


class PhaseClock:
    """`now` on CPU, CUDA events on CUDA (reading them waits for the device)."""

    def __init__(self, device: torch.device | str = "cpu", now: Callable[[], float] = time.perf_counter) -> None:
        """now: seconds; `time.process_time` counts those of the processors instead of the wall's."""
        self._cuda, self._now = torch.device(device).type == "cuda", now
        self.reset()

    def reset(self) -> None:
        self._seconds = {"attention": 0.0, "exchange": 0.0}
        self._events: list[tuple[Phase, Any, Any]] = []

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        if self._cuda:
            event: Any = torch.cuda.Event
            start, stop = event(enable_timing=True), event(enable_timing=True)
            start.record()
            try:
                yield
            finally:
                stop.record()
                self._events.append((name, start, stop))
            return
        began = self._now()
        try:
            yield
        finally:
            self._seconds[name] += self._now() - began

    def read(self) -> PhaseTimes:
        """Times since the last reset."""
        if self._events:
            torch.cuda.synchronize()
            for name, start, stop in self._events:
                self._seconds[name] += start.elapsed_time(stop) / 1e3
            self._events.clear()
        return PhaseTimes(self._seconds["attention"], self._seconds["exchange"])
