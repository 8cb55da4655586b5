"""What a run loses when something breaks: `python benchmarks/recovery.py [--json]` is `zellige bench recovery`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from zellige_ray.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["bench", "recovery", *sys.argv[1:]]))
