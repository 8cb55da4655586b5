"""Pictures: a run's previews as files at a step, for sinks that keep pictures. The names are stable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from zellige_ray.monitor.events import Event, PreviewEvent


class Picture(NamedTuple):
    """A preview. name: `preview/` and its sample. file: a PNG, or an MP4 with a PNG of its middle frame beside it."""

    step: int
    name: str
    file: Path

    @property
    def still(self) -> Path:
        """The PNG."""
        return self.file.with_suffix(".png")


def pictures(events: Iterable[Event], folder: Path) -> Iterator[Picture]:
    """Previews among the events, in order; those whose files are not in the run folder any more are left out."""
    for event in events:
        if not isinstance(event, PreviewEvent):
            continue
        for name in event.files:
            picture = Picture(event.step, f"preview/{Path(name).stem}", folder / name)
            if picture.file.is_file() and picture.still.is_file():
                yield picture
