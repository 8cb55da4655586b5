"""Measure this machine for a run: the model's own blocks, attention, exchanges, reduction, as curves in a file.

Workers are plain processes here, as many as the config says; a run on a cluster measures for itself when it starts, and
keeps what it measured. The file is used by `placement.profile`, and by `--hardware` of `plan` and `simulate` with a
model of the same width and heads. Ctrl-C leaves no file.
"""

from __future__ import annotations

import argparse
import json
import sys

from zellige_ray.commands.outputs import check_outputs
from zellige_ray.config import load_config
from zellige_ray.configs import choose, configs
from zellige_ray.errors import ConfigError

BUDGET_S = 12.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "zellige profile [CONFIG] [key=value ...] [--out FILE] [--budget S] [--json]"
    parser.add_argument(
        "words",
        nargs="*",
        metavar="CONFIG | key=value",
        help=f"a YAML file, or one of {', '.join(configs)} (default: mini); then overrides such as model.layers=6",
    )
    parser.add_argument("--out", metavar="FILE", help="where to write it (default: where runs look for it)")
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S, metavar="S", help=f"seconds of measuring (default: {BUDGET_S:g})"
    )
    parser.add_argument("--json", action="store_true", help="the profile as one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    if not 0 < args.budget < float("inf"):
        raise ConfigError(f"--budget is {args.budget:g} s, it must be positive and finite")
    check_outputs({"--out": args.out})
    config = load_config(*choose(args.words))

    from zellige_ray.api import profile

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    found = profile(config, out=args.out, budget_s=args.budget, say=say)
    for warning in found.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    if args.json:
        sys.stdout.write(json.dumps(found.to_dict()) + "\n")
    else:
        sys.stdout.write(found.describe() + "\n")
    return 0
