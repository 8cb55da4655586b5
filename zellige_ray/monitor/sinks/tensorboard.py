"""TensorBoard: an event file in the run folder, written without TensorFlow or torch."""

from __future__ import annotations

from collections.abc import Sequence

from zellige_ray.monitor.events import Event
from zellige_ray.monitor.sinks.scalars import Scalars
from zellige_ray.monitor.sinks.sink import SinkRun

FOLDER = "tensorboard"


class TensorBoard:
    """`tensorboard --logdir runs` finds the file of every run."""

    def __init__(self, run: SinkRun) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(run.folder / FOLDER))
        self._scalars = Scalars()

    def write(self, events: Sequence[Event]) -> None:
        for step, values in self._scalars.of(events):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
