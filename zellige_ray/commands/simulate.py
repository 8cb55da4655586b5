"""Compare policies over a stream of batches, by the timeline: no GPU, no Ray, no torch.

A workload is a name (lengths drawn as public trainers do, seeded) or files, each a batch of JSON lines.
`bags:best-static` is the one group spec that is best over the whole stream, as a system with static groups runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from zellige_ray.api import POLICIES
from zellige_ray.commands.outputs import PICTURES, check_outputs, write_output
from zellige_ray.errors import PlanError
from zellige_ray.placement.stream import PolicyFigures
from zellige_ray.words import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", required=True, nargs="+", metavar="NAME|FILE", help="a workload, or batch files")
    parser.add_argument("--hardware", required=True, metavar="H", help="preset name or YAML file")
    parser.add_argument("--model", required=True, metavar="M", help="preset name or YAML file")
    default = ",".join(POLICIES)
    parser.add_argument("--policies", default=default, metavar="a,b,c", help=f"default: {default}")
    parser.add_argument(
        "--baseline", metavar="POLICY", help="ratios are to it (default: bags:best-static, else the last)"
    )
    parser.add_argument(
        "--batches", type=int, default=10, metavar="N", help="batches of a named workload (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed of a named workload (default: 0)")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object on stdout")
    parser.add_argument("--picture", metavar="p.svg|png", help="bars of step time per policy, over the lower bound")


def run(args: argparse.Namespace) -> int:
    from zellige_ray.api import simulate
    from zellige_ray.placement import load_hardware, load_model
    from zellige_ray.placement.stream import BEST_STATIC

    inputs = [*args.workload, args.hardware, args.model]
    check_outputs({"--picture": args.picture}, inputs, {"--picture": PICTURES})
    if args.batches < 1:
        raise PlanError(f"--batches is {args.batches}, it must be at least 1")
    if args.seed < 0:
        raise PlanError(f"--seed is {args.seed}, it must be at least 0")
    hardware, model = load_hardware(args.hardware), load_model(args.model)
    named = len(args.workload) == 1 and not Path(args.workload[0]).is_file()
    workload = args.workload[0] if named else args.workload
    policies = [name for name in args.policies.split(",") if name]
    if not policies:
        raise PlanError("--policies is empty, name at least one")
    baseline = args.baseline or (BEST_STATIC if BEST_STATIC in policies else policies[-1])
    if baseline not in policies:
        raise PlanError(f"--baseline {baseline} is not among --policies {args.policies}")
    rows = list(simulate(workload, hardware, model, policies, args.batches, args.seed))
    num_batches = args.batches if named else len(args.workload)
    base = next(row for row in rows if row.policy == baseline)
    if args.picture:
        from zellige_ray.monitor.mosaic import comparison_picture

        title = f"{' '.join(args.workload)} on {hardware.name}, {model.name}"
        write_output("--picture", args.picture, lambda: comparison_picture(rows, title, Path(args.picture).suffix))
    if args.json:
        figures = [{**row.to_dict(), "ratio": _ratio(base, row)} for row in rows]
        out = {"workload": args.workload, "hardware": hardware.name, "model": model.name, "batches": num_batches}
        sys.stdout.write(json.dumps({**out, "baseline": baseline, "policies": figures}) + "\n")
    else:
        title = (
            f"{' '.join(args.workload)} on {hardware.name}, {model.name}, {counted(num_batches, 'batch', 'batches')}"
        )
        sys.stdout.write(title + "\n" + table(rows, base) + "\n")
    return 0


def _ratio(base: PolicyFigures, row: PolicyFigures) -> float | None:
    """How many times faster than the baseline; None where one of them can't place the stream."""
    return None if base.failed or row.failed else base.step_s / row.step_s


def table(rows: Sequence[PolicyFigures], base: PolicyFigures) -> str:
    """One line per policy, as text."""
    columns = f"{'step':>9} {'gap':>8} {'idle':>6} {'exchange':>8} {'moved GB':>9} {'peak GiB':>8} {'rounds':>6}"
    head = f"{'policy':<28} {columns} {'plan ms (p50, p99)':>18}  vs {base.policy}"
    lines = [head, "-" * len(head)]
    for x in rows:
        name = x.policy if x.resolved == x.policy else f"{x.policy} = {x.resolved.removeprefix('bags:')}"
        if x.failed:
            lines.append(f"{name:<28} can't place the stream: {x.failed}")
            continue
        ratio = _ratio(base, x)
        lines.append(
            f"{name:<28} {x.step_s:>8.3f}s {x.gap:>8.2%} {x.idle_share:>6.1%} {x.exchange_share:>8.1%} "
            f"{x.moved_bytes / 1e9:>9.1f} {x.peak_bytes / 2**30:>8.1f} {x.rounds:>6.1f} "
            f"{x.plan_median_ms:>9.1f} {x.plan_p99_ms:>8.1f}  " + ("-" if ratio is None else f"{ratio:.3f}x")
        )
    return "\n".join(lines)
