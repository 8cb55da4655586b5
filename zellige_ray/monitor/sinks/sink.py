"""A sink: takes events in the feed's thread, a handful at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from zellige_ray.monitor.events import Event


@dataclass(frozen=True, slots=True)
class SinkRun:
    """What a sink knows about its run. config: plain values."""

    name: str
    folder: Path
    config: dict[str, Any] = field(default_factory=dict)


class Sink(Protocol):
    """Raises what its library raises: the feed then leaves it out and says so."""

    def write(self, events: Sequence[Event]) -> None:
        """Events in order; the steps of StepEvents and of HeldOutEvents ascend."""

    def close(self) -> None:
        """Everything that was written is where it belongs afterwards."""


Open = Callable[[SinkRun], Sink]
