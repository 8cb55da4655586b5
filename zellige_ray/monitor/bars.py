"""Bars: a rank's load as a row of glyphs, readable with and without colour."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from zellige_ray.monitor.history import Load

# phase -> (glyph, style); glyphs differ, so that colour is never the only sign
phases: dict[str, tuple[str, str]] = {
    "linear": ("█", "blue"),
    "attention": ("▓", "magenta"),
    "exchange": ("▒", "yellow"),
    "idle": ("·", "dim"),
}
MAX_RANKS = 8


def bar(load: Load, longest_s: float, width: int) -> Text:
    """One rank's phases in order, `longest_s` filling the whole width; rounding never makes the bar longer."""
    text = Text()
    drawn, until_s = 0, 0.0
    for name, (glyph, style) in phases.items():
        until_s += getattr(load, f"{name}_s")
        stop = min(width, round(width * until_s / longest_s)) if longest_s > 0 else 0
        text.append(glyph * (stop - drawn), style=style)
        drawn = max(drawn, stop)
    return text.append(" " * (width - drawn))


def legend() -> Text:
    text = Text()
    for name, (glyph, style) in phases.items():
        text.append(f"{glyph} ", style=style).append(f"{name}  ", style="dim")
    return text


def load_table(planned: Sequence[Load], measured: Sequence[Load], width: int) -> Table:
    """Planned beside measured, one row per rank; of many ranks, those that worked the longest."""
    beside = {load.rank: load for load in planned}
    shown = sorted(measured, key=lambda m: (m.idle_s - m.total_s, m.rank))[:MAX_RANKS]
    shown.sort(key=lambda m: m.rank)
    longest_s = max((x.total_s for x in (*planned, *measured)), default=0.0)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("rank", justify="right")
    table.add_column("planned", width=width, no_wrap=True)
    table.add_column("measured", width=width, no_wrap=True)
    table.add_column("busy", justify="right")
    for load in shown:
        plan = bar(beside[load.rank], longest_s, width) if load.rank in beside else Text("")
        busy = 1 - load.idle_s / load.total_s if load.total_s > 0 else 0.0
        table.add_row(str(load.rank), plan, bar(load, longest_s, width), f"{busy:.0%}")
    table.caption = legend()
    if len(measured) > len(shown):
        table.caption.append(f"the {len(shown)} busiest of {len(measured)} ranks", style="dim")
    table.caption_justify = "left"
    return table
