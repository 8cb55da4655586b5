"""TensorBoard: an event file in the run folder, written without TensorFlow or torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from zellige_ray.monitor.events import Event
from zellige_ray.monitor.sinks.pictures import Picture, pictures
from zellige_ray.monitor.sinks.scalars import Scalars
from zellige_ray.monitor.sinks.sink import SinkRun

FOLDER = "tensorboard"


class TensorBoard:
    """`tensorboard --logdir runs` finds the file of every run."""

    def __init__(self, run: SinkRun) -> None:
        from tensorboard.summary import Writer

        self._folder = run.folder
        self._writer = Writer(str(run.folder / FOLDER))
        self._drawn: Any = None
        self._scalars = Scalars()

    def write(self, events: Sequence[Event]) -> None:
        for step, values in self._scalars.of(events):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        self._writer.flush()
        for picture in pictures(events, self._folder):
            self._draw(picture)

    def close(self) -> None:
        self._writer.close()
        if self._drawn is not None:
            self._drawn.close()

    def _draw(self, picture: Picture) -> None:
        """The writer above knows numbers only: pictures go to a file of their own beside its, made with the first."""
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._drawn is None:
            self._drawn = EventFileWriter(str(self._folder / FOLDER), filename_suffix=".previews")
        png = picture.still.read_bytes()
        width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))  # of a PNG's header
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
        value = Summary.Value(tag=picture.name, image=image)
        self._drawn.add_event(Record(wall_time=time.time(), step=picture.step, summary=Summary(value=[value])))
        self._drawn.flush()
