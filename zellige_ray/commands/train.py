"""Train a Diffusion Transformer by a YAML config.

The config is validated as a whole before any worker starts. Without one, the mini set is fetched and trained on.
Ctrl-C ends with a complete checkpoint and exit code 130.
"""

from __future__ import annotations

import argparse
import json
import sys

from zellige_ray.config import load_config
from zellige_ray.configs import choose, configs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "zellige train [CONFIG] [key=value ...] [--json]"
    parser.add_argument(
        "words",
        nargs="*",
        metavar="CONFIG | key=value",
        help=f"a YAML file, or one of {', '.join(configs)} (default: mini); then overrides such as model.layers=6",
    )
    parser.add_argument(
        "--json", action="store_true", help="the summary as one JSON object on stdout, progress on stderr"
    )


def run(args: argparse.Namespace) -> int:
    config = load_config(*choose(args.words))

    from rich.console import Console

    from zellige_ray.api import train
    from zellige_ray.monitor.progress import Progress
    from zellige_ray.monitor.summary import print_summary

    console = Console(stderr=args.json)
    with Progress(config.steps, console) as progress:
        summary = train(config, on_event=progress.see)
    print_summary(summary, progress.history, console)
    if args.json:
        json.dump(summary, sys.stdout)
        sys.stdout.write("\n")
    return 0
