"""The sink of JSON lines: whole lines, their times, and what a crash leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, NoteEvent
from zellige_ray.monitor.metrics import JsonLines, read_events


def test_reads_back_what_was_written_with_its_time(folder: Path, events: list[Event]) -> None:
    timed = list(read_events(folder / run_folder.METRICS))
    assert [event for _, event in timed] == events
    assert [at for at, _ in timed] == [1_000_000.0 + i for i in range(len(events))]


def test_a_second_sink_appends_as_a_resumed_run_does(folder: Path, events: list[Event]) -> None:
    with JsonLines(folder / run_folder.METRICS) as sink:
        sink.see(NoteEvent("info", "resumed"))
    assert len(list(read_events(folder / run_folder.METRICS))) == len(events) + 1


def test_line_cut_off_by_a_crash_is_left_out(folder: Path, events: list[Event]) -> None:
    path = folder / run_folder.METRICS
    path.write_text(path.read_text()[:-20])
    assert [event for _, event in read_events(path)] == events[:-1]


def test_broken_line_in_the_middle_is_named_by_its_number(folder: Path) -> None:
    path = folder / run_folder.METRICS
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace("info", "info\\")
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl line 3 is not an event"):
        list(read_events(path))
