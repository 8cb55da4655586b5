"""Progress: lines in a log, a live display in a terminal, and the time left by tokens."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from zellige_ray.monitor.events import Event, PhaseEvent, StepEvent
from zellige_ray.monitor.progress import LOG_INTERVAL_S, Progress, clock_text, is_live


class Clock:
    """Goes on by as much as it is told."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def log() -> Console:
    return Console(file=io.StringIO(), width=100)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_log_has_a_timestamped_line_for_every_happening(events: list[Event], clock: Clock) -> None:
    console = log()
    with Progress(12, console, clock) as progress:
        for event in events:
            clock.now_s += LOG_INTERVAL_S
            progress.see(event)
    lines = text_of(console).splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d \S", line) for line in lines)
    assert sum(" step " in line and "/12" in line for line in lines) == 12
    told = "\n".join(lines)
    assert "encode 4/4" in told
    assert "w3 left: SIGKILL <b>; epoch 1, 0.31 s lost, 8 samples replayed" in told
    assert "warning: the disk has 12 MiB left" in told
    assert "kernel: sdpa [cpu]" in told, "square brackets in a text are no markup"
    assert "policies on the same 5 batches: zellige 0.400 s, dp 0.600 s, cp 0.700 s" in told


def test_step_line_has_the_figures(make_step: Callable[..., StepEvent], clock: Clock) -> None:
    console = log()
    with Progress(12, console, clock) as progress:
        clock.now_s += 1
        progress.see(make_step(1))
    line = text_of(console).splitlines()[-1]
    for piece in ("loss 1.3500", "tokens/s 12,000", "samples/s 16.0", "idle 8%", "workers 4", "epoch 0", "left 0:11"):
        assert piece in line, line


def test_fast_steps_are_thinned_in_a_log_but_first_and_last_stay(
    make_step: Callable[..., StepEvent], clock: Clock
) -> None:
    console = log()
    with Progress(1000, console, clock) as progress:
        for number in range(1, 1001):
            clock.now_s += 0.01
            progress.see(make_step(number, steps=1000))
    lines = text_of(console).splitlines()
    assert len(lines) <= 10 / LOG_INTERVAL_S + 2
    assert "step 1/1000" in lines[0] and "step 1000/1000" in lines[-1]


def test_time_left_is_by_tokens_not_by_steps(make_step: Callable[..., StepEvent], clock: Clock) -> None:
    """Half of the steps are done, but nine tenths of the tokens are left."""
    progress = Progress(4, log(), clock)
    for number in (1, 2):
        clock.now_s += 10
        event = make_step(number, tokens=100)
        progress.see(StepEvent(**{n: getattr(event, n) for n in StepEvent.__slots__} | {"tokens_left": 1800}))
    assert progress.left_s() == pytest.approx(1800 / (200 / 20))


def test_time_left_does_not_count_the_first_step_once_there_is_another(
    make_step: Callable[..., StepEvent], clock: Clock
) -> None:
    """The first step compiles and fills caches: 100 s here, the others take one."""
    progress = Progress(12, log(), clock)
    for number, seconds in ((1, 100.0), (2, 1.0), (3, 1.0)):
        clock.now_s += seconds
        progress.see(make_step(number))
    assert progress.left_s() == pytest.approx(9.0)


def test_time_left_does_not_count_preparation(make_step: Callable[..., StepEvent], clock: Clock) -> None:
    progress = Progress(2, log(), clock)
    assert progress.left_s() is None
    clock.now_s += 500
    progress.see(PhaseEvent("encode", 4, 4))
    clock.now_s += 1
    progress.see(make_step(1, steps=2))
    assert progress.left_s() == pytest.approx(1.0)


def test_terminal_shows_figures_and_load_bars(events: list[Event], clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, legacy_windows=False)
    with Progress(12, console, clock) as progress:
        for event in events:
            clock.now_s += 1
            progress.see(event)
        console.print(progress._frame())
    shown = text_of(console)
    for piece in ("12/12", "planned", "measured", "linear", "attention", "█", "▓"):
        assert piece in shown, piece
    assert "w3 left" in shown


@pytest.mark.parametrize("name", ["CI", "NO_COLOR"])
def test_display_is_plain_where_somebody_asked_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, legacy_windows=False)
    assert is_live(console)
    monkeypatch.setenv(name, "1")
    assert not is_live(console)


def test_display_is_plain_in_a_log_and_on_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_live(log())
    monkeypatch.setenv("TERM", "dumb")
    assert not is_live(Console(file=io.StringIO(), force_terminal=True, legacy_windows=False))


def test_cursor_comes_back_after_an_interrupt(events: list[Event]) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, legacy_windows=False)
    with pytest.raises(KeyboardInterrupt), Progress(12, console) as progress:
        progress.see(events[0])
        raise KeyboardInterrupt
    shown = text_of(console)
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (605, "10:05"), (3600, "1:00:00"), (90061, "25:01:01")]
)
def test_clock_text(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text
