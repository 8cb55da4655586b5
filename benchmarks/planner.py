"""The planner's speed and quality claims: `python benchmarks/planner.py [--json]` is `zellige bench planner`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from zellige_ray.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["bench", "planner", *sys.argv[1:]]))
