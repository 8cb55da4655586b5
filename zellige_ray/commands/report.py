"""Write the report of a run folder again, also of a run that was cut short."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs/latest", help="a run folder (default: runs/latest)")


def run(args: argparse.Namespace) -> int:
    from zellige_ray.monitor.report import write_report

    sys.stdout.write(f"{write_report(Path(args.folder))}\n")
    return 0
