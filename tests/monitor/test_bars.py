"""Load bars: their lengths are proportional, and never longer than the room they have."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from zellige_ray.monitor.bars import MAX_RANKS, bar, load_table
from zellige_ray.monitor.history import Load

seconds = st.floats(0, 1e3)


def test_bar_is_proportional() -> None:
    assert bar(Load(0, 1.0, 2.0, 0.5, 0.5, 10, 0), 4.0, 8).plain == "██▓▓▓▓▒·"
    assert bar(Load(0, 1.0, 0.0, 0.0, 0.0, 10, 0), 4.0, 8).plain == "██      "


@given(linear=seconds, attention=seconds, exchange=seconds, idle=seconds, width=st.integers(1, 60))
def test_bar_fills_exactly_its_width(linear: float, attention: float, exchange: float, idle: float, width: int) -> None:
    load = Load(0, linear, attention, exchange, idle, 0, 0)
    assert len(bar(load, load.total_s, width).plain) == width


def test_of_many_ranks_the_busiest_are_shown_and_the_count_is_told() -> None:
    loads = [Load(r, 1.0, 1.0 + (r == 77), 0.0, 0.0, 10, 0) for r in range(256)]
    console = Console(file=io.StringIO(), width=120)
    console.print(load_table(loads, loads, 20))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert " 77 " in shown
    assert f"the {MAX_RANKS} busiest of 256 ranks" in " ".join(shown.split())
