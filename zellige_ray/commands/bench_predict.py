"""Predict steps that nobody fitted to, then run them: the error of the forecast beside the machine's own noise.

A reference DiT on ranks that are processes of this machine, one pinned thread each, over gloo. A profile is measured
first; then 21 plans (policies dp, cp, bags, even, zellige and random valid tilings, seven batches) run in turn, in
another order each time. Percentages are mean absolute errors of medians. repeat_noise is how far one repeat is from the
median of its plan, on average. Memory is that of the fullest rank: live bytes of tensors, counted in a step of each
plan.

On one rank, as on a CUDA device, every plan is of another batch, and holds it whole. With more ranks than processors
wall time says little: `cpu_mape` compares the processor time of the busiest rank, and is the figure to look at.
`curves_over_constants` is step time of plans made with measured curves over that of plans made with FLOP rates alone,
on batches of pictures and clips: below 1 the curves win.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zellige_ray.errors import ConfigError

TEXT_DIM = 64
LEAST = {"ranks": 1, "plans": 1, "repeats": 1, "layers": 1, "heads": 1, "head_dim": 4, "scale": 1, "batches": 0}
ALONE = 1536  # tokens of the one sequence that FLOP rates are read at


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=2, help="processes; on CUDA, one (default: 2)")
    parser.add_argument("--plans", type=int, default=21, help="held-out plans, at most 21 (default: 21)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each plan that count (default: 5)")
    parser.add_argument("--budget", type=float, default=12.0, metavar="S", help="seconds of profiling (default: 12)")
    parser.add_argument("--layers", type=int, default=8, help="layers of the DiT (default: 8)")
    parser.add_argument("--heads", type=int, default=4, help="its heads (default: 4)")
    parser.add_argument("--head-dim", type=int, default=32, help="channels of a head (default: 32)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="default: float32")
    parser.add_argument("--scale", type=int, default=1, help="times the rows and columns of all samples (default: 1)")
    parser.add_argument("--checkpointing", choices=("none", "full"), default="none", help="default: none")
    parser.add_argument("--batches", type=int, default=4, help="batches of curves against constants (default: 4)")
    parser.add_argument("--first", action="store_true", help="ranks run before all other work of the machine (root)")
    parser.add_argument("--seed", type=int, default=0, help="of batches and tilings (default: 0)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    for name, least in LEAST.items():
        if getattr(args, name) < least:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(args, name)}, it must be at least {least}")
    figures = measure(args, lambda text: sys.stderr.write(f"{text}\n"))
    if args.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        sys.stdout.write(table(figures) + "\n")
    return 0


def measure(args: argparse.Namespace, say: Any) -> dict[str, Any]:
    """All figures, by name."""
    import torch

    from zellige_ray.actors.local_profile import profile_ranks
    from zellige_ray.actors.planning import lengths
    from zellige_ray.actors.prediction_trials import (
        Trial,
        count_peaks,
        grids,
        held_out_trials,
        mixed_batches,
        model_settings,
        predicted_peaks,
        predictions,
        run_trials,
        weighed,
    )
    from zellige_ray.actors.rank_processes import RankProcesses
    from zellige_ray.config import parse_config
    from zellige_ray.data.random_cache import write_random_cache
    from zellige_ray.models.specs import get_spec
    from zellige_ray.placement import CostModel, make_plan

    with tempfile.TemporaryDirectory(prefix="zellige-predict-") as scratch:
        folder = Path(scratch) / "cache"
        config = parse_config(
            {
                "data": {"source": str(folder), "cache": str(folder)},
                "batch": {"tokens": 4096 * args.scale**2},
                "model": model_settings(args.layers, args.heads, args.head_dim, args.checkpointing),
                "engine": {"dtype": args.dtype},
                "workers": {"count": args.ranks},
                "steps": 10_000,
            }
        )
        spec = get_spec(config.model.name)
        preset = spec.preset(config.model, config.engine.dtype_bytes)
        samples = write_random_cache(folder, spec, grids(args.scale), TEXT_DIM, args.seed).index().samples
        with RankProcesses(args.ranks, config, str(folder), first=args.first) as ranks:
            shared = args.ranks > len(os.sched_getaffinity(0))
            local = profile_ranks(ranks, config, TEXT_DIM, args.budget, say, processor_time=shared)
            hardware = local.profile.hardware
            cluster = replace(hardware, speed=local.speeds).cluster()
            cost = CostModel(hardware, preset, measured_memory=weighed(ranks))
            trials = held_out_trials(samples, spec, cluster, cost, args.plans, args.seed)
            forecasts = predictions(trials, cluster, cost)
            outcomes = run_trials(ranks, trials, args.repeats, say)
            constants = CostModel(flop_constants(hardware, cost), preset)
            pairs: list[Trial] = []
            for batch in mixed_batches(samples, args.batches if args.ranks > 1 else 0, args.seed):
                batch_rows = lengths(batch, spec)
                pairs += [
                    Trial(n, make_plan(batch_rows, cluster, c), batch)
                    for n, c in (("curves", cost), ("constants", constants))
                ]
            versus = run_trials(ranks, pairs, args.repeats, say) if pairs else []
            say("counting live bytes")
            counted, told = count_peaks(ranks, trials), predicted_peaks(trials, cluster, cost)
    rows: list[dict[str, Any]] = []
    for trial, f, o, peak, expected in zip(trials, forecasts, outcomes, counted, told, strict=True):
        rows.append(
            {
                "policy": trial.policy,
                "sequences": trial.plan.num_sequences,
                "predicted_s": f.step_s,
                "measured_s": o.step_s,
                "error": f.step_s / o.step_s - 1,
                "noise": o.noise,
                "predicted_cpu_s": max(r.busy_s for r in f.ranks),
                "measured_cpu_s": o.cpu_s,
                "exchange_share": o.exchange_share,
                "predicted_bytes": expected,
                "counted_bytes": peak,
                "ranks": [
                    {
                        "predicted": [r.linear_s, r.attention_s, r.exchange_s, r.idle_s],
                        "measured": list(measured),
                    }
                    for r, measured in zip(f.ranks, o.phases, strict=True)
                ],
            }
        )
    steps = [o.step_s for o in outcomes]
    return {
        "makespan_mape": _percent([row["error"] for row in rows]),
        "memory_mape": _percent([row["predicted_bytes"] / row["counted_bytes"] - 1 for row in rows]),
        "repeat_noise": 100 * statistics.fmean(o.noise for o in outcomes),
        "cpu_mape": _percent([row["predicted_cpu_s"] / row["measured_cpu_s"] - 1 for row in rows]),
        "cpu_repeat_noise": 100 * statistics.fmean(o.cpu_noise for o in outcomes),
        "bias": 100 * statistics.fmean(row["error"] for row in rows),
        "spread": max(steps) / min(steps),
        "exchange_heavy": sum(row["exchange_share"] >= 0.1 for row in rows),
        "curves_over_constants": _geomean(
            [a.step_s / b.step_s for a, b in zip(versus[::2], versus[1::2], strict=True)]
        ),
        "different_plans": sum(a.plan.hash != b.plan.hash for a, b in zip(pairs[::2], pairs[1::2], strict=True)),
        "ranks": args.ranks,
        "shared_processors": shared,
        "hardware": f"{local.profile.key.device}, torch {torch.__version__}",
        "seed": args.seed,
        "warnings": list(local.warnings),
        "plans": rows,
    }


def flop_constants(hardware: Any, cost: Any) -> Any:
    """The same machine as FLOP rates: one for token-wise work, one for attention, read at one long sequence."""
    import numpy as np

    from zellige_ray.placement.planning_costs import attention_cells

    m = cost.model
    cell_s = float(attention_cells(hardware.curves, m, np.array([float(ALONE)]))[0])
    rate = 4 * m.hidden / m.heads * (4 if m.checkpointing == "full" else 3) / cell_s
    return replace(hardware, curves=None, attention_flops=rate)


def table(figures: dict[str, Any]) -> str:
    """The figures for a person."""
    lines = [
        f"{'policy':<10} {'sequences':>9} {'predicted':>10} {'measured':>9} {'error':>7} {'noise':>6} {'exchange':>8}"
    ]
    for r in figures["plans"]:
        lines.append(
            f"{r['policy']:<10} {r['sequences']:>9} {r['predicted_s']:>9.3f}s {r['measured_s']:>8.3f}s "
            f"{r['error']:>+7.1%} {r['noise']:>6.1%} {r['exchange_share']:>8.1%}"
        )
    ratio = figures["curves_over_constants"]
    lines += [
        f"makespan: {figures['makespan_mape']:.1f} % mean absolute error, bias {figures['bias']:+.1f} %; "
        f"a repeat is {figures['repeat_noise']:.1f} % from its median",
        f"memory of the fullest rank: {figures['memory_mape']:.2f} % mean absolute error against live bytes, counted",
        f"busiest rank's processor time: {figures['cpu_mape']:.1f} %, repeats {figures['cpu_repeat_noise']:.1f} %",
        f"slowest over fastest plan {figures['spread']:.1f}; {figures['exchange_heavy']} exchange for 10 % or more",
        f"planned with curves over planned with FLOP rates: {ratio:.3f}" if ratio is not None else "",
        f"{figures['ranks']} ranks, {figures['hardware']}; seed {figures['seed']}",
        *figures["warnings"],
    ]
    return "\n".join(line for line in lines if line)


def _percent(errors: Sequence[float]) -> float:
    return 100 * statistics.fmean(abs(e) for e in errors)


def _geomean(ratios: Sequence[float]) -> float | None:
    return math.exp(statistics.fmean(math.log(r) for r in ratios)) if ratios else None
