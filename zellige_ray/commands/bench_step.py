"""Whole steps of policies, timed against each other on two ranks with a slow link between them.

The same model (a DiT of the size that `make train` trains), the same batches, the same engine; two processes, each
pinned to a core with one thread, in two network namespaces with a rate-limited link between them where root allows
that, else over plain loopback. Policies take turns; plans are made with the rates that the workers measure over that
very link. `bags:best-static` is the bag spec that was measured to be the fastest over all batches. The rate `find` is
the one at which `bags:g2n1` spends a quarter of its steps in exchanges.

Batches have 8 to 12 pictures and 1 to 3 clips with the shapes of the mini set (pictures at 320 x 320 pixels, clips of
up to 33 frames), drawn with a seed; those on which `dp` idles for less than 30 % of the ranks' time, by FLOPs, are left
out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zellige_ray.errors import ConfigError

if TYPE_CHECKING:
    from zellige_ray.actors.planning import Planner
    from zellige_ray.actors.step_trials import Batch, Step, StepTrials
    from zellige_ray.config import RunConfig
    from zellige_ray.placement import Plan

STATIC, OURS, EVERYWHERE = "bags:best-static", "zellige", "bags:g2n1"
POLICIES = ("dp", "cp", STATIC, "even", OURS)
FIND, FIND_SHARE = "find", 0.25
MODEL = {"name": "dit", "layers": 2, "heads": 4, "head_dim": 32}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from zellige_ray.actors.step_trials import RATES

    span = f"{RATES[0]:g} to {RATES[1]:g}"
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument(
        "--rates", nargs="+", default=["50", "200", FIND, "1000", "2000"],
        help=f"rates of the link in Mbit/s, {span}, or `{FIND}` (default: 50 200 {FIND} 1000 2000)",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=7, help="timed turns of every policy (default: 7)")
    parser.add_argument("--batches", type=int, default=3, help="batches of the stream (default: 3)")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), help=f"default: {' '.join(POLICIES)}")
    parser.add_argument("--seed", type=int, default=0, help="of batches, weights and noise (default: 0)")
    parser.add_argument(
        "--netns", choices=("auto", "required", "off"), default="auto",
        help="network namespaces with a limited link: where possible, or fail, or plain loopback (default: auto)",
    )  # fmt: skip
    parser.add_argument("--first", action="store_true", help="ranks run before all other work of this machine (root)")
    parser.add_argument(
        "--shrink", type=int, default=1, help="sides of all latents divided by it, for a look; any batch is taken"
    )


def run(args: argparse.Namespace) -> int:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: ranks and latents are cleared away
    try:
        figures = measure(args)
    finally:
        signal.signal(signal.SIGTERM, before)
    if args.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        _print(figures)
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All figures. Raises ConfigError and PlanError for bad arguments, before anything starts."""
    from zellige_ray.actors.step_trials import IDLE, draw_batches, step_trials

    rates = _check(args)
    why_not = _obstacle(args.netns)
    config = _config(args.seed)
    with step_trials(config, not why_not, args.first, args.shrink) as (trials, index):
        batches = draw_batches(index, config, args.batches, IDLE if args.shrink == 1 else 0.0)
        rows = []
        mbit_s: float | None
        for rate in rates if not why_not else [None]:
            found = rate == FIND
            if found:
                everywhere = trials.plans(trials.planner(batches), batches, EVERYWHERE)
                mbit_s = trials.find_rate(batches, everywhere, FIND_SHARE)
            elif rate is not None:
                mbit_s = float(rate)
                trials.limit(mbit_s)
            else:
                mbit_s = None
            rows.append({"found": found, **_at_rate(trials, batches, args.policies, args.repeats, mbit_s)})
    return {
        "link": f"loopback, its rate not limited: {why_not}" if why_not else "two network namespaces, veth and tbf",
        "hardware": f"{os.cpu_count()} CPUs, {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "model": MODEL,
        "seed": args.seed,
        "repeats": args.repeats,
        "batches": [{"images": _tokens(b, "image"), "clips": _tokens(b, "video")} for b in batches],
        "step": "from the order to the last vote: optimizer, latents, forward, backward, gradients reduced",
        "rates": rows,
    }


def _check(args: argparse.Namespace) -> list[str]:
    from zellige_ray.actors.step_trials import RATES
    from zellige_ray.placement import get_policy

    for rate in args.rates:
        try:
            fits = rate == FIND or RATES[0] <= float(rate) <= RATES[1]
        except ValueError:
            fits = False
        if not fits:
            raise ConfigError(f"rate {rate} is neither {RATES[0]:g} to {RATES[1]:g} Mbit/s nor {FIND!r} (--rates)")
    for name in args.policies:
        if name != STATIC:
            get_policy(name)
    for name in ("repeats", "batches", "shrink"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name} is {getattr(args, name)}, it must be at least 1")
    if OURS not in args.policies:
        raise ConfigError(f"--policies lacks {OURS!r}, which the others are compared with")
    return list(args.rates)


def _obstacle(netns: str) -> str:
    from zellige_ray.actors.link import obstacle

    if netns == "off":
        return "asked for (--netns off)"
    why_not = obstacle()
    if why_not and netns == "required":
        raise ConfigError(f"--netns required: {why_not}; run it as root, or with --netns off over loopback")
    return why_not


def _config(seed: int) -> RunConfig:
    from zellige_ray.config import RunConfig

    values = {
        "seed": seed,
        "data": {"source": "mini"},
        "batch": {"samples": 1},
        "model": MODEL,
        "workers": {"count": 2, "min": 2, "wait_timeout_s": 1.0},
    }
    return RunConfig.model_validate(values)


def _at_rate(
    trials: StepTrials, batches: Sequence[Batch], policies: Sequence[str], repeats: int, mbit_s: float | None
) -> dict[str, Any]:
    planner = trials.planner(batches)
    specs = trials.static_specs()
    names = list(dict.fromkeys([*(p for p in policies if p != STATIC), *specs]))
    plans = {name: trials.plans(planner, batches, name) for name in names}
    steps = trials.interleaved(batches, plans, repeats)
    turns = {name: [statistics.fmean(s.seconds for s in turn) for turn in steps[name]] for name in names}
    step_s = {name: _typical(steps[name], lambda step: step.seconds) for name in names}
    best = min(specs, key=step_s.__getitem__)
    shown = {p: best if p == STATIC else p for p in policies}
    wire = planner.hardware.inter_node_bytes_per_s * 8e-6
    shares = {name: _typical(steps[name], lambda step: step.exchange_share) for name in names}
    return {
        "mbit_s": wire if mbit_s is None else mbit_s,
        "best_static": best.partition(":")[2],
        "step_s": {p: step_s[n] for p, n in shown.items()},
        "ratio": {p: statistics.median(_ratios(turns[n], turns[OURS])) for p, n in shown.items()},
        "ratio_spread": {p: _quartiles(_ratios(turns[n], turns[OURS])) for p, n in shown.items()},
        "turns_s": {p: turns[n] for p, n in shown.items()},
        "predicted_step_s": {p: _predicted(plans[n]) for p, n in shown.items()},
        "predicted_ratio": {p: _predicted(plans[n]) / _predicted(plans[OURS]) for p, n in shown.items()},
        "exchange_bytes": {p: statistics.fmean(s.sent_bytes for s in steps[n][-1]) for p, n in shown.items()},
        "exchange_share": {p: shares[n] for p, n in shown.items()},
        "exchange_share_bags": shares[EVERYWHERE],
        "static_step_s": {n: step_s[n] for n in specs},
        "dp_idle_share": _typical(steps[specs[0]], lambda step: step.idle_share),
        "measured_rates": {**_rates(planner), "speeds": trials.speeds(planner)},
        "phases": {p: _phases(steps[n], plans[n]) for p, n in shown.items()},
    }


def _typical(turns: Sequence[Sequence[Step]], figure: Callable[[Step], float]) -> float:
    """Mean over the batches of the median over the turns."""
    return statistics.fmean(statistics.median(map(figure, same)) for same in zip(*turns, strict=True))


def _ratios(theirs: Sequence[float], ours: Sequence[float]) -> list[float]:
    """Turn by turn, since what slows the machine for a while slows both."""
    return [a / b for a, b in zip(theirs, ours, strict=True)]


def _quartiles(values: Sequence[float]) -> list[float]:
    """A quarter of the values are below the one, a quarter above the other."""
    return [values[0]] * 2 if len(values) == 1 else statistics.quantiles(values, n=4, method="inclusive")[::2]


def _predicted(plans: Sequence[Plan]) -> float:
    return statistics.fmean(plan.predicted.step_s for plan in plans if plan.predicted is not None)


def _rates(planner: Planner) -> dict[str, float]:
    hw = planner.hardware
    return {
        "linear_flops": hw.linear_flops,
        "attention_flops": hw.attention_flops,
        "bytes_per_s": hw.inter_node_bytes_per_s,
        "latency_s": hw.message_latency_s,
    }


def _phases(turns: Sequence[Sequence[Step]], plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """Seconds of each phase by rank, typical over the batches, and as predicted; `idle_s` has the reduction in it."""
    predicted = [plan.predicted for plan in plans if plan.predicted is not None]
    out = []
    for rank in range(len(turns[0][0].times)):
        row: dict[str, Any] = {"rank": rank}
        for phase in ("linear_s", "attention_s", "exchange_s", "idle_s"):
            row[phase] = _typical(turns, _phase_of(rank, phase))
            row[f"predicted_{phase}"] = statistics.fmean(getattr(p.ranks[rank], phase) for p in predicted)
        out.append(row)
    return out


def _phase_of(rank: int, phase: str) -> Callable[[Step], float]:
    return lambda step: float(getattr(step.times[rank], phase))


def _tokens(batch: Batch, media: str) -> list[int]:
    return [s.tokens() for s in batch if s.media == media]


def _print(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"{figures['link']}; {figures['hardware']}; step: {figures['step']}")
    for row in figures["rates"]:
        title = f"{row['mbit_s']:.0f} Mbit/s{' (found)' if row['found'] else ''}: best static {row['best_static']}, "
        title += f"exchange of g2n1 {row['exchange_share_bags']:.0%}, dp idle {row['dp_idle_share']:.0%}"
        table = Table(title=title)
        for column in ("policy", "step s", "over zellige", "quartiles", "predicted", "exchange MB", "in exchange"):
            table.add_column(column)
        for policy, seconds in row["step_s"].items():
            low, high = row["ratio_spread"][policy]
            table.add_row(
                policy, f"{seconds:.3f}", f"{row['ratio'][policy]:.3f}", f"{low:.3f} to {high:.3f}",
                f"{row['predicted_ratio'][policy]:.3f}", f"{row['exchange_bytes'][policy] / 1e6:.1f}",
                f"{row['exchange_share'][policy]:.0%}",
            )  # fmt: skip
        console.print(table)
