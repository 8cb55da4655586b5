"""Run a benchmark and print its figures, with what is needed to judge them: hardware, seeds, spread, rivals.

`zellige bench NAME --help` explains one.
"""

from __future__ import annotations

import argparse
import difflib
import importlib

from zellige_ray.commands.arguments import run_command
from zellige_ray.errors import ConfigError

# A benchmark is a module with `add_arguments(parser)` and `run(args) -> exit code`, and a line here.
benches: dict[str, str] = {
    "engine": "zellige_ray.commands.bench_engine",
    "planner": "zellige_ray.commands.bench_planner",
    "predict": "zellige_ray.commands.bench_predict",
    "recovery": "zellige_ray.commands.bench_recovery",
    "step": "zellige_ray.commands.bench_step",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"zellige bench {{{','.join(benches)}}} [...]"
    parser.add_argument("name", help=f"one of: {', '.join(benches)}")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="arguments of the benchmark; --help lists them")


def run(args: argparse.Namespace) -> int:
    if args.name not in benches:
        near = difflib.get_close_matches(args.name, benches, n=1, cutoff=0.0)
        raise ConfigError(f"benchmark {args.name!r} is unknown, the nearest is {near[0]!r}, all: {', '.join(benches)}")
    return run_command(f"bench {args.name}", importlib.import_module(benches[args.name]), args.rest)
