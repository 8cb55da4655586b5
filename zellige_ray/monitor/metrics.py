"""Metrics: the events of a run as JSON lines, written while it goes and read back afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from zellige_ray.json_lines import parse_json
from zellige_ray.monitor.events import Event, from_json, to_json


class JsonLines:
    """A sink that appends one line per event, its time (Unix seconds) under `time`, and flushes it.

    A line is whole or absent for a reader that splits at newlines: each is written by one call.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._clock = clock

    def see(self, event: Event) -> None:
        line = {"time": round(self._clock(), 3), **to_json(event)}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_events(path: Path, newest_bytes: int | None = None) -> Iterator[tuple[float, Event]]:
    """(time, event) of every line; a last line without its newline was cut off by a crash, it is left out.

    newest_bytes: read only the whole lines in so many bytes at the end of the file.

    Raises ValueError, with the line's number, where a line is not an event.
    """
    text = path.read_text(encoding="utf-8") if newest_bytes is None else _tail(path, newest_bytes)
    whole = text[: text.rfind("\n") + 1]
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            value = parse_json(line)
            yield float(value.pop("time")), from_json(value)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as fault:
            raise ValueError(f"{path.name} line {number} is not an event: {fault}") from fault


def _tail(path: Path, num_bytes: int) -> str:
    with path.open("rb") as file:
        start = max(0, file.seek(0, 2) - num_bytes)
        file.seek(start)
        raw = file.read()
    return (raw[raw.find(b"\n") + 1 :] if start else raw).decode("utf-8")
