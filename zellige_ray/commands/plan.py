"""Place one batch, and show what every rank will do; or answer what a run config needs, before anything is launched.

The batch is JSON lines of {"id", "tokens", "text_tokens"}. Hardware and model are shipped presets (by name) or YAML
files. Needs no GPU, no Ray and no torch: it also answers "what if I had other hardware". With a run config instead of a
batch: longest sequence, memory per rank, step time, GPUs needed and waste, on the config's own data set.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from zellige_ray.commands import plan_config
from zellige_ray.commands.outputs import PICTURES, check_outputs, write_output
from zellige_ray.errors import ConfigError, PlanError
from zellige_ray.placement.plan import Plan, Prediction
from zellige_ray.words import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="CONFIG | key=value", help="a run config, and overrides")
    parser.add_argument("--batch", metavar="B.jsonl", help="the sequences, one JSON row per line")
    parser.add_argument("--hardware", metavar="H", help="preset name or YAML file (of a config: placement.hardware)")
    parser.add_argument("--model", metavar="M", help="preset name or YAML file; a config brings its own")
    parser.add_argument(
        "--policy", help="zellige, dp, cp, bags:g1n8+g2n4, bags:best, ... (default: zellige, or the config's)"
    )
    parser.add_argument("--batches", type=int, metavar="N", help="of a config: batches that are planned (default: 8)")
    parser.add_argument("--out", metavar="plan.json", help="write the plan (format zellige.plan/1)")
    parser.add_argument("--picture", metavar="p.svg|png", help="draw the plan as a mosaic: ranks down, time across")
    parser.add_argument("--trace", metavar="t.json", help="write the timeline as a Chrome trace (opens in Perfetto)")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    from zellige_ray.placement import CostModel, load_hardware, load_model, make_plan
    from zellige_ray.placement.batch import read_batch

    if args.words:
        return plan_config.run_arguments(args)
    check_given(args)
    outputs = {"--out": args.out, "--picture": args.picture, "--trace": args.trace}
    check_outputs(outputs, [args.batch, args.hardware, args.model], {"--picture": PICTURES})
    hardware, model = load_hardware(args.hardware), load_model(args.model)
    sequences = read_batch(args.batch)
    cluster, cost = hardware.cluster(), CostModel(hardware, model)
    start = time.perf_counter()
    plan = make_plan(sequences, cluster, cost, args.policy or "zellige")
    plan_ms = (time.perf_counter() - start) * 1e3
    if args.out:
        from zellige_ray.placement import plan_to_json

        write_output("--out", args.out, lambda: json.dumps(plan_to_json(plan)))
    if args.picture:
        from zellige_ray.monitor.mosaic import mosaic_picture

        write_output("--picture", args.picture, lambda: mosaic_picture(plan, cluster, cost, Path(args.picture).suffix))
    if args.trace:
        from zellige_ray.monitor.trace import chrome_trace

        write_output("--trace", args.trace, lambda: json.dumps(chrome_trace(plan, cluster, cost)))
    figures = summary(plan, plan_ms)
    if args.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        sys.stdout.write(table(plan, cluster.memory_bytes, figures) + "\n")
    return 0


def check_given(args: argparse.Namespace) -> None:
    """Nothing, if a batch has all that its plan needs. Raises ConfigError naming what is missing."""
    missing = [f"--{name}" for name in ("batch", "hardware", "model") if getattr(args, name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} missing: give a batch, hardware and a model, or a run config")
    if args.batches is not None:
        raise ConfigError("--batches goes with a run config; --batch is one batch")


def summary(plan: Plan, plan_ms: float) -> dict[str, Any]:
    """The figures of a plan as plain values."""
    predicted = _predicted(plan)
    return {
        "policy": plan.policy,
        "hash": plan.hash,
        "world_size": plan.world_size,
        "sequences": plan.num_sequences,
        "rounds": len(plan.rounds),
        "step_s": predicted.step_s,
        "lower_bound_s": predicted.lower_bound_s,
        "gap": predicted.gap,
        "plan_ms": plan_ms,
        "ranks": [{key: getattr(x, key) for key in type(x).__slots__} for x in predicted.ranks],
    }


def table(plan: Plan, memory_bytes: tuple[int, ...], figures: dict[str, Any]) -> str:
    """The load of every rank, then the verdict, as text."""
    head = f"{'rank':>5} {'linear':>10} {'attention':>10} {'exchange':>10} {'idle':>10} {'tokens':>9} {'memory':>18}"
    lines = [head, "-" * len(head)]
    for x in _predicted(plan).ranks:
        memory = f"{x.peak_bytes / 2**30:6.1f} of {memory_bytes[x.rank] / 2**30:5.1f} GiB"
        times = " ".join(f"{_seconds(v):>10}" for v in (x.linear_s, x.attention_s, x.exchange_s, x.idle_s))
        lines.append(f"{x.rank:>5} {times} {x.tokens:>9} {memory:>18}")
    sequences, ranks = counted(figures["sequences"], "sequence"), counted(plan.world_size, "rank")
    lines += [
        "",
        f"policy {plan.policy}: {sequences} on {ranks} in {counted(figures['rounds'], 'round')}",
        f"step {_seconds(figures['step_s'])}, lower bound {_seconds(figures['lower_bound_s'])}, "
        f"gap {figures['gap']:.2%}; planned in {figures['plan_ms']:.1f} ms; hash {plan.hash[:12]}",
        "(exchange: waits for data that own attention does not hide)",
    ]
    return "\n".join(lines)


def _predicted(plan: Plan) -> Prediction:
    if plan.predicted is None:
        raise PlanError("the plan has no prediction; make it with make_plan, or run simulate on it")
    return plan.predicted


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 1 else f"{value * 1e3:.2f} ms"
