"""Policies' steps over a slow link: `python benchmarks/step.py [--json]` is `zellige bench step`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from zellige_ray.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["bench", "step", *sys.argv[1:]]))
