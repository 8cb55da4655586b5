"""Look at this machine before a run does: ports, address, shared memory, disk, GPUs, a round trip, Ray, versions.

Each line is ok, a warning or a failure with its mend. Exit code 1 when there is a failure, else 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from zellige_ray.commands.doctor_checks import Line, examine
from zellige_ray.config import PageConfig, load_config
from zellige_ray.configs import choose

STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", help="where runs would be written (default: runs, or the config's)")
    parser.add_argument("--config", metavar="CONFIG", help="look for this run: its folder, its live page")
    parser.add_argument("--json", action="store_true", help="the lines as one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    from zellige_ray.commands.doctor_probes import look

    config = load_config(*choose([args.config])) if args.config else None
    folder = args.folder or (config.folder if config is not None else "runs")
    lines = examine(look(Path(folder), config.page if config is not None else PageConfig()))
    failed = any(line.state == "failure" for line in lines)
    if args.json:
        sys.stdout.write(json.dumps({"ok": not failed, "lines": [line.to_json() for line in lines]}) + "\n")
    else:
        _print(lines)
    return int(failed)


def _print(lines: list[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    console, width = Console(), max(len(line.check) for line in lines)
    for line in lines:
        text = Text.assemble((f"{line.state:<8}", STYLES[line.state]), f" {line.check:<{width}}  {line.found}")
        console.print(text, soft_wrap=True)
        if line.mend:
            console.print(Text(f"{'':<{width + 11}}-> {line.mend}"), soft_wrap=True)
