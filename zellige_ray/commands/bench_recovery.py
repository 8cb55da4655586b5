"""How long a run stands still when something breaks, on several Ray nodes of this machine, and what it loses.

Stall: from the blow to the start of the first step that the run begins after it knows of the blow, with the same worker
processes; for a worker that joins or leaves between two steps, from the commit of one to the start of the next. Partial
work that was thrown away is told apart (`lost_s`). The same model, batch and events under Ray Train's elastic mode are
timed beside it, in the same run, by `benchmarks/recovery_ray_train.py`, unless --no-ray-train.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKERS = 3
PING_TIMEOUT_S = 2.0
BASELINE = Path(__file__).resolve().parents[2] / "benchmarks" / "recovery_ray_train.py"
BASELINE_TIMEOUT_S = 900.0
SETTLED = 10  # steps before the first blow, so that it does not fall into the start of processes
# seconds: what the project promises, on a machine that has nothing else to do
LIMITS = {
    "worker_kill": 0.5,
    "node_remove": 0.5,
    "freeze": PING_TIMEOUT_S + 0.5,
    "join": 0.5,
    "driver_kill": 3.0,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object on stdout")
    parser.add_argument("--events", type=int, default=2, help="events of each kind (default: 2)")
    parser.add_argument(
        "--scale", type=int, default=2, help="size of the latents; a step must take >= 0.3 s (default: 2)"
    )
    parser.add_argument("--no-ray-train", action="store_true", help="leave Ray Train's elastic mode out")


def run(args: argparse.Namespace) -> int:
    from zellige_ray.actors.chaos_data import write_random_latents

    with tempfile.TemporaryDirectory(prefix="zellige-recovery-") as name:
        folder = Path(name)
        write_random_latents(folder / "latents", 48, args.scale)
        figures = measure(folder, args.events)
        figures["ray_train"] = None if args.no_ray_train else _baseline(args)
    if args.json:
        json.dump(figures, sys.stdout)
        sys.stdout.write("\n")
    else:
        _print(figures)
    return 0


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """The run that is broken: a reference DiT on random latents."""
    return {
        "steps": 100_000,
        "evaluate_every": 100_000,
        "compare_batches": 0,
        "data": {"source": str(folder / "latents"), "held_out": 3},
        "batch": {"samples": 8},
        "model": {"name": "dit", "layers": 4, "heads": 4, "head_dim": 32},
        "workers": {"count": WORKERS, "ping_timeout_s": PING_TIMEOUT_S},
        "checkpoint": {"every": 100_000},
        "preview": {"every": None},
        **changes,
    }


def measure(folder: Path, num_events: int) -> dict[str, Any]:
    """Breaks a run in every way, `num_events` times each; the figures."""
    from zellige_ray.actors.chaos import Field, Run, boundary_stalls, losses, stall_s
    from zellige_ray.monitor.events import MembershipEvent, StepEvent

    field = Field()
    try:
        run = Run(field, folder / "broken", settings(folder))
        try:
            # its driver belongs to the head, the only node so far: the others go away
            run.wait(lambda: (run.folder / "ledger.jsonl").exists(), "the run's start")
            for _ in range(WORKERS):
                field.add_node()
            run.wait_for_size(WORKERS)
            run.more_steps(SETTLED)
            blows: list[Callable[[int], Any]] = [
                lambda i: run.signal_worker("worker_kill", signal.SIGKILL, i + 1),
                lambda i: run.signal_worker("freeze", signal.SIGSTOP, i + 1),
                lambda i: run.remove_node(i + 1, graceful=True),
                lambda i: run.kill_driver(),
            ]
            happenings, kept = [], []
            for i in range(num_events):
                for blow in blows:
                    happening = blow(i)
                    happenings.append(happening)
                    if happening.kind == "node_remove":
                        run.wait_for_size(WORKERS - 1)
                        field.add_node()
                    run.more_steps(3)
                    run.wait_for_size(WORKERS)
                    now = {m["worker"]: m["pid"] for m in run.members()["members"]}
                    kept.append(all(now.get(w) == pid for w, pid in happening.pids.items()))
            summary, events = run.finish(), run.events()
        finally:
            run.kill()
        calm = Run(field, folder / "calm", settings(folder, steps=summary["steps"], workers={"count": 1}))
        try:
            calm.finish(stop=False)
            undisturbed = losses(calm.events())
        finally:
            calm.kill()
    finally:
        field.close()
    disturbed = losses(events)
    rows: list[dict[str, Any]] = [
        {"kind": h.kind, "stall_s": stall_s(h, events), "survivor_pids_kept": k}
        for h, k in zip(happenings, kept, strict=True)
    ]
    # pids are compared once the newcomer that follows a blow is in, so every comparison covers a join as well
    joins_kept = all(kept)
    rows += [
        {"kind": "join", "stall_s": s, "survivor_pids_kept": joins_kept} for s in boundary_stalls(events, "joined")
    ]
    return {
        "hardware": {"cpus": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()[0]},
        "workers": WORKERS,
        "step_s": statistics.median(e.seconds for _, e in events if isinstance(e, StepEvent)),
        "ping_timeout_s": PING_TIMEOUT_S,
        "events": rows,
        "median_stall_s": _medians(rows),
        "limits_s": LIMITS,
        "lost_s": [e.lost_s for _, e in events if isinstance(e, MembershipEvent) and e.change == "left"],
        "steps": summary["steps"],
        "samples_lost": summary["samples_lost"],
        "samples_doubled": summary["samples_doubled"],
        "loss_max_rel_diff": max(abs(disturbed[s] - loss) / abs(loss) for s, loss in undisturbed.items()),
    }


def _medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    each: dict[str, list[float]] = {}
    for row in rows:
        if row["stall_s"] is not None:
            each.setdefault(row["kind"], []).append(row["stall_s"])
    return {kind: statistics.median(stalls) for kind, stalls in each.items()}


def _baseline(args: argparse.Namespace) -> dict[str, Any]:
    """Ray Train's elastic mode on the same model and events; an error is told, not hidden."""
    if not BASELINE.exists():
        return {"error": f"{BASELINE.name} is in a clone of the repository, not in the installed package"}
    command = [sys.executable, str(BASELINE), "--json", "--scale", str(args.scale), "--events", str(args.events)]
    limit_s = BASELINE_TIMEOUT_S * args.events
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as fault:
        return {"error": str(fault)}
    if done.returncode != 0:
        return {"error": f"exit code {done.returncode}: {done.stderr[-1000:]}"}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _print(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"stall in seconds, {figures['workers']} workers, step {figures['step_s']:.2f} s")
    for column in ("event", "each", "median", "promised", "Ray Train"):
        table.add_column(column)
    theirs = figures["ray_train"] or {}
    for kind, middle in figures["median_stall_s"].items():
        each = " ".join(f"{r['stall_s']:.2f}" for r in figures["events"] if r["kind"] == kind and r["stall_s"])
        rival = theirs.get("median_stall_s", {}).get(kind)
        table.add_row(kind, each, f"{middle:.2f}", f"{LIMITS[kind]:.2f}", "-" if rival is None else f"{rival:.1f}")
    console = Console()
    console.print(table)
    kept = all(r["survivor_pids_kept"] for r in figures["events"])
    console.print(
        f"samples lost {figures['samples_lost']}, doubled {figures['samples_doubled']} in {figures['steps']} steps; "
        f"largest relative difference of a loss to an undisturbed run {figures['loss_max_rel_diff']:.1e}; "
        f"survivors kept their processes: {'yes' if kept else 'no'}"
    )
    if "error" in theirs:
        console.print(f"Ray Train: {theirs['error']}")
