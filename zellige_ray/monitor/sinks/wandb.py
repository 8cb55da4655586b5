"""Weights & Biases: one run there per run folder; WANDB_MODE=offline keeps it on the disk."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from zellige_ray.monitor.events import Event
from zellige_ray.monitor.sinks.pictures import pictures
from zellige_ray.monitor.sinks.scalars import Scalars
from zellige_ray.monitor.sinks.sink import SinkRun

PROJECT = "zellige"  # WANDB_PROJECT overrules it


class WeightsAndBiases:
    """A run that is resumed goes on under its old id, because its folder has its old name."""

    def __init__(self, run: SinkRun) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=re.sub(r"[^A-Za-z0-9_-]", "-", run.folder.name),
            resume="allow",
            dir=str(run.folder),
            config=run.config,
        )
        self._folder, self._image, self._video = run.folder, wandb.Image, wandb.Video
        self._scalars = Scalars()

    def write(self, events: Sequence[Event]) -> None:
        for step, values in self._scalars.of(events):
            self._run.log(values, step=step)
        for picture in pictures(events, self._folder):
            make = self._image if picture.file.suffix == ".png" else self._video
            self._run.log({picture.name: make(str(picture.file))}, step=picture.step)

    def close(self) -> None:
        self._run.finish()
