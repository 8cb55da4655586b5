"""Progress: how a run is going, alive in a terminal and as timestamped lines in a log."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zellige_ray.monitor.bars import load_table
from zellige_ray.monitor.events import (
    CheckpointEvent,
    ComparisonEvent,
    Event,
    HeldOutEvent,
    MembershipEvent,
    NoteEvent,
    PhaseEvent,
    PreviewEvent,
    RatesEvent,
    StepEvent,
)
from zellige_ray.monitor.figures import flops_text
from zellige_ray.monitor.history import KEPT, WINDOW, History
from zellige_ray.words import counted

LOG_INTERVAL_S = 2.0  # of steps and phases in a log; the first and the last are always written


class Progress:
    """Shows every event it sees. A context: the live display ends, and the cursor comes back, however the run ends.

    steps: the last step of the run. The time left is by visual tokens left, because steps have unequal cost, at the
    pace of the last steps on the wall clock, evaluations and previews included; the first step, in which caches and
    kernels warm up, counts only while it is the only one. history: what was seen, bounded.
    """

    def __init__(self, steps: int, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = History(kept=KEPT)
        self._steps = steps
        self._console = console
        self._clock = clock
        self._pace: deque[tuple[float, int]] = deque([(clock(), 0)], maxlen=WINDOW + 1)
        self._num_steps = 0
        self._written_s: dict[str, float] = {}
        self._live = Live(console=console, refresh_per_second=4, transient=True) if is_live(console) else None

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def see(self, event: Event) -> None:
        self.history.see(event)
        if isinstance(event, StepEvent):
            tokens = self._pace[-1][1] + event.tokens
            self._pace.append((self._clock(), tokens))
            self._num_steps += 1
            if self._num_steps == 2:
                self._pace.popleft()
        elif not self.history.steps:
            self._pace[-1] = (self._clock(), 0)  # the pace of training starts where preparation ends
        line = self._line(event)
        if line:
            self._print(line)
        if self._live:
            self._live.update(self._frame())

    def left_s(self) -> float | None:
        """Seconds until the last step, or None before the first."""
        (start_s, before), (now_s, after) = self._pace[0], self._pace[-1]
        if not self.history.steps or after == before:
            return None
        return self.history.steps[-1].tokens_left * (now_s - start_s) / (after - before)

    def _print(self, line: str) -> None:
        stamp = "" if self._live else time.strftime("%H:%M:%S ")
        self._console.print(f"{stamp}{line}", highlight=False, soft_wrap=True)

    def _line(self, event: Event) -> str | None:
        """What an event leaves in the log, or above the live display; None for what only the display shows."""
        match event:
            case RatesEvent():
                return None
            case PhaseEvent(name, done, total):
                due = self._due(name, first=done == 0, last=done == total)
                return f"{name} {done}/{total}" if due and not self._live else None
            case StepEvent(step=step):
                due = self._due("step", first=len(self.history.steps) == 1, last=step >= self._steps)
                return self._step_line() if due and not self._live else None
            case HeldOutEvent(step, loss):
                return f"held-out loss {loss:.4f} at step {step}"
            case PreviewEvent(step, files):
                return f"previews of step {step}: {escape(', '.join(files))}"
            case CheckpointEvent(step, path, seconds):
                return f"checkpoint of step {step} in {seconds:.1f} s: {escape(path)}"
            case MembershipEvent():
                return escape(membership_line(event))
            case NoteEvent(level, text):
                return f"[yellow]warning:[/] {escape(text)}" if level == "warning" else escape(text)
            case ComparisonEvent(batches, policies):
                shown = ", ".join(f"{name} {seconds:.3f} s" for name, (seconds, _) in policies.items())
                return f"policies on the same {counted(batches, 'batch', 'batches')}: {shown}"

    def _due(self, name: str, first: bool, last: bool) -> bool:
        now_s = self._clock()
        due = first or last or now_s - self._written_s.get(name, 0.0) >= LOG_INTERVAL_S
        if due:
            self._written_s[name] = now_s
        return due

    def _step_line(self) -> str:
        return f"step {self.history.steps[-1].step}/{self._steps}  " + "  ".join(f"{k} {v}" for k, v in self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        history, step = self.history, self.history.steps[-1]
        held_out = [("held-out", f"{history.held_out[-1].loss:.4f}")] if history.held_out else []
        left_s = self.left_s()
        return [
            ("loss", f"{step.loss:.4f}"),
            *held_out,
            ("tokens/s", f"{history.tokens_per_s():,.0f}"),
            ("samples/s", f"{history.samples_per_s():.1f}"),
            ("idle", f"{history.idle_share():.0%}"),
            *self._efficiency(),
            ("workers", str(step.world_size)),
            ("epoch", str(step.epoch)),
            ("pass", str(step.pass_)),
            ("left", "?" if left_s is None else clock_text(left_s)),
        ]

    def _efficiency(self) -> list[tuple[str, str]]:
        """HFU where a peak is set, else what a rank achieves; nothing where nobody counted FLOPs."""
        share, achieved = self.history.hfu(), self.history.flops_per_s()
        if share is not None:
            return [("hfu", f"{share:.0%}")]
        return [("each rank", flops_text(achieved))] if achieved is not None else []

    def _frame(self) -> RenderableType:
        history = self.history
        if not history.steps:
            rows = [_bar_row(p.name, p.done, p.total) for p in history.phases.values() if p.done < p.total]
            return Group(*rows) if rows else Text("preparing", style="dim")
        facts = Text()
        for name, value in self._facts():
            facts.append(f"{name} ", style="dim").append(f"{value}  ", style="bold")
        width = max(8, min(40, (self._console.width - 20) // 2))
        loads = load_table(history.planned(), history.measured(), width)
        return Group(_bar_row("step", history.steps[-1].step, self._steps), facts, loads)


def is_live(console: Console) -> bool:
    """A live display needs a terminal that nobody asked to be plain: no CI, no NO_COLOR, no TERM=dumb."""
    plain = any(os.environ.get(name) for name in ("CI", "NO_COLOR")) or console.is_dumb_terminal
    return console.is_terminal and not plain


def membership_line(event: MembershipEvent) -> str:
    """Who came or went, why, and what it cost, in one plain line."""
    replayed = counted(event.replayed, "sample")
    cost = f", {event.lost_s:.2f} s lost, {replayed} replayed" if event.change == "left" else ""
    return f"{event.worker} {event.change}: {event.reason}; epoch {event.epoch}{cost}"


def clock_text(seconds: float) -> str:
    """`m:ss`, or `h:mm:ss` from one hour on."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _bar_row(name: str, done: int, total: int) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_column(width=8)
    row.add_column(width=40)
    row.add_column(justify="right")
    row.add_row(name, ProgressBar(total=max(total, 1), completed=done), f"{done}/{total}")
    return row
