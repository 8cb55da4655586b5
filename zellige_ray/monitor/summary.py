"""Summary: the tables that a person reads when a run has ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from zellige_ray.monitor import run_folder
from zellige_ray.monitor.history import History, Load
from zellige_ray.words import counted

# key of summary.json -> (label, format); shown in this order, where the run has the figure
labels: dict[str, tuple[str, str]] = {
    "steps": ("steps", "{:,}"),
    "heldout_first": ("held-out loss, first", "{:.4f}"),
    "heldout_last": ("held-out loss, last", "{:.4f}"),
    "heldout_drop": ("held-out loss fell by", "{:.1%}"),
    "images": ("images trained on", "{:,}"),
    "videos": ("videos trained on", "{:,}"),
    "passes": ("complete passes", "{:,}"),
    "tokens_per_s": ("visual tokens per second", "{:,.0f}"),
    "idle_share": ("idle share of the ranks", "{:.1%}"),
    "flops_per_s": ("FLOP/s of one rank", "{:.3g}"),
    "hfu": ("hardware FLOP utilization (HFU)", "{:.1%}"),
    "hfu_peak_flops": ("HFU: peak of one rank (peak_flops)", "{:.3g}"),
    "gap_to_bound": ("plan over the lower bound", "{:+.1%}"),
    "gap_to_bound_measured": ("step over the lower bound", "{:+.1%}"),
    "speedup_over_dp": ("faster than dp, measured", "{:.2f}x"),
    "speedup_over_cp": ("faster than cp, measured", "{:.2f}x"),
    "speedup_over_dp_predicted": ("faster than dp, predicted", "{:.2f}x"),
    "speedup_over_cp_predicted": ("faster than cp, predicted", "{:.2f}x"),
    "samples_lost": ("samples lost", "{:,}"),
    "samples_doubled": ("samples doubled", "{:,}"),
    "replans": ("replans after a loss", "{:,}"),
    "warnings": ("warnings", "{:,}"),
}


def print_summary(summary: Mapping[str, Any], history: History, console: Console) -> None:
    """Load per rank, policies compared, figures of the run; each only where there is something to show."""
    if history.steps:
        console.print(load_figures(history))
    if history.comparison:
        console.print(policy_figures(history))
    console.print(run_figures({**history.figures(), **summary}))


def shown_figures(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, formatted value) of the figures that the run has."""
    return [(label, form.format(summary[key])) for key, (label, form) in labels.items() if summary.get(key) is not None]


def run_figures(summary: Mapping[str, Any]) -> Table:
    table = Table(title="The run", title_justify="left", show_header=False)
    for label, value in shown_figures(summary):
        table.add_row(label, value)
    if "run_folder" in summary:
        table.add_row("run folder", _short(Path(summary["run_folder"])))
        table.add_row("its report", _short(Path(summary["run_folder"]) / run_folder.REPORT))
    return table


def policy_figures(history: History) -> Table:
    assert history.comparison is not None
    title = f"Policies on the same {counted(history.comparison.batches, 'batch', 'batches')}"
    table = Table("policy", title=title, title_justify="left")
    table.add_column("measured, s", justify="right")
    table.add_column("predicted, s", justify="right")
    for name, (measured, predicted) in sorted(history.comparison.policies.items(), key=lambda item: item[1][0]):
        table.add_row(name, f"{measured:.3f}", f"{predicted:.3f}")
    return table


def load_figures(history: History) -> Table:
    title = "Load per rank, mean of the last steps: planned / measured, milliseconds"
    table = Table(title=title, title_justify="left")
    for name in ("rank", "tokens", "linear", "attention", "exchange", "idle", "resident MiB"):
        table.add_column(name, justify="right")
    planned = {load.rank: load for load in history.planned()}
    for load in history.measured():
        pairs = [
            _pair(planned.get(load.rank), load, f"{phase}_s") for phase in ("linear", "attention", "exchange", "idle")
        ]
        table.add_row(str(load.rank), f"{load.tokens:,.0f}", *pairs, f"{load.memory_bytes / 2**20:,.0f}")
    return table


def _short(path: Path) -> str:
    """A path as a person would type it here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _pair(planned: Load | None, measured: Load, name: str) -> str:
    before = "-" if planned is None else f"{1e3 * getattr(planned, name):z.0f}"
    return f"{before} / {1e3 * getattr(measured, name):z.0f}"
