"""Verify that a run used every sample exactly once per pass, and print what happened when.

In a run folder, its checkpoints and its metrics are witnesses: a ledger that ends before steps that they know of has
lost lines. Exit code 1 when a sample was lost or doubled, or a step is missing; 2 when there is nothing to verify.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from zellige_ray.data.record import Record
from zellige_ray.errors import DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", default="runs/latest", help="a run folder or a ledger (default: runs/latest)")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")


def run(args: argparse.Namespace) -> int:
    from zellige_ray.data.audit import verify
    from zellige_ray.monitor import run_folder

    path = Path(args.run)
    path = path / run_folder.LEDGER if path.is_dir() else path
    if not path.is_file():
        raise DataError(f"there is no ledger at {path}: name a run folder, or a {run_folder.LEDGER}")
    report = verify(path)
    gone = lines_gone(path)
    if not report.steps and not gone:
        raise DataError(f"the ledger {path} holds no step: there is nothing to verify")
    ok = report.ok and not gone
    figures = {
        "steps": report.steps,
        "samples": report.samples,
        "complete_passes": report.complete_passes,
        "samples_lost": report.samples_lost,
        "samples_doubled": report.samples_doubled,
        "samples_unknown": report.samples_unknown,
        "steps_missing": report.steps_missing,
        "steps_doubled": report.steps_doubled,
        "steps_replayed": report.steps_replayed,
        "epochs": report.epochs,
        "world_sizes": list(report.world_sizes),
        "seconds": report.seconds,
        "lines_gone": gone,
        "ok": ok,
        "events": [e.to_json() for e in report.events],
    }
    if args.json:
        json.dump(figures, sys.stdout)
        sys.stdout.write("\n")
    else:
        _print({k: v for k, v in figures.items() if k != "events"}, [_line(e) for e in report.events])
    return 0 if ok else 1


def lines_gone(path: Path) -> str:
    """What other files of the run know of steps behind the ledger's end, in words; empty when they agree."""
    from zellige_ray.data.record import read
    from zellige_ray.monitor import run_folder
    from zellige_ray.monitor.events import StepEvent
    from zellige_ray.monitor.metrics import read_events
    from zellige_ray.training import checkpoint_files

    last = max((record.step for record in read(path) if record.event is None), default=0)
    checkpoint, metrics, found = checkpoint_files.newest(path.parent), path.parent / run_folder.METRICS, []
    if checkpoint is not None and (step := checkpoint_files.read_position(checkpoint).step) > last:
        found.append(f"the checkpoint {checkpoint.name} is of step {step}")
    try:
        steps = [e.step for _, e in read_events(metrics) if isinstance(e, StepEvent)] if metrics.is_file() else []
    except ValueError as fault:
        raise DataError(str(fault)) from fault
    if steps and steps[-1] > last:
        found.append(f"{metrics.name} knows step {steps[-1]}")
    return f"{' and '.join(found)}, the ledger ends at step {last}: lines of it are gone" if found else ""


def _line(event: Record) -> str:
    """What happened, on one line: where, how many workers were left, what, and the seconds that it cost."""
    lost = f"  {event.seconds:.2f} s lost" if event.seconds else ""
    where = f"step {event.step:>6}  epoch {event.epoch:>4}  workers {event.world_size:>3}"
    return f"{where}  {event.event or '':<11}  {event.detail}{lost}"


def _print(figures: dict[str, object], events: list[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for line in events:
        console.print(escape(line), highlight=False, soft_wrap=True)
    table = Table(show_header=False)
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), f"{value:.1f}" if isinstance(value, float) else str(value))
    console.print(table)
