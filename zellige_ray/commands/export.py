"""Write a run's weights as a diffusers folder, offline: no Ray, no workers.

The EMA is written where the run keeps one, --raw writes the weights themselves. Of a LoRA run the whole model is
written, adapters merged; --lora writes the adapters alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace

from zellige_ray.errors import ConfigError

DTYPES = ("float32", "float64", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder, or one of its checkpoints")
    parser.add_argument(
        "--to", required=True, metavar="DIR", help="the folder to write, or its URL; it must be new or empty"
    )
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help="the checkpoint of this step (default: newest)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--ema", action="store_true", help="the averaged weights (default where the run has them)")
    which.add_argument("--raw", action="store_true", help="the weights as they were trained")
    parser.add_argument("--lora", action="store_true", help="the adapters of a LoRA run, as diffusers loads them")
    parser.add_argument("--dtype", choices=DTYPES, help="type of the written weights (default: as trained)")
    parser.add_argument(
        "--shard-size", metavar="SIZE", help="largest file, such as 5GB; more get an index (default: 10GB)"
    )
    parser.add_argument("--json", action="store_true", help="what was written as one JSON object")


def run(args: argparse.Namespace) -> int:
    from zellige_ray.training import export

    weights: export.Weights | None = "ema" if args.ema else "raw" if args.raw else None
    if args.lora and args.shard_size is not None:
        raise ConfigError(
            f"--lora writes one file, --shard-size {args.shard_size} would be ignored: leave one of them out"
        )
    with export.local_target(args.to) as folder:
        if args.lora:
            done = export.export_lora(args.run, folder, args.checkpoint, weights, args.dtype)
        else:
            size = args.shard_size or export.SHARD_SIZE
            done = export.export_model(args.run, folder, args.checkpoint, weights, args.dtype, size)
    if folder != args.to:
        done = replace(done, folder=args.to)
    if args.json:
        sys.stdout.write(json.dumps(asdict(done)) + "\n")
        return 0
    what = "adapters of a" if args.lora else ""
    kind = "EMA weights" if done.weights == "ema" else "raw weights"
    size_mb = f"{done.num_parameters / 1e6:.1f} M parameters, {done.num_bytes / 1e6:.1f} MB"
    line = f"{what} {done.class_name} of step {done.step}: {kind}, {done.dtype}, {size_mb}, in {done.folder}".strip()
    sys.stdout.write(f"{line}\n")
    return 0
