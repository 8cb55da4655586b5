"""Time the attention engine: packed against serial, coalesced against separate, overlapped against not; and its memory.

Ratios above 1 are in favour of the engine, except memory. On CPU: a small Wan through diffusers as it is, float32,
forward and backward, the same threads for both sides; ranks are threads over gloo. Figures are medians of interleaved
repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

# Packed buffers are larger than glibc's mmap threshold and would be given back and faulted in again at every operation.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of one rank (default: 1)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each comparison (default: 5)")


def run(args: argparse.Namespace) -> int:
    """The measurements run in a process of their own, because allocator settings are read when one starts."""
    command = [sys.executable, "-m", __name__, "--threads", str(args.threads), "--repeats", str(args.repeats)]
    done = subprocess.run(command, env={**os.environ, **MALLOC}, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if args.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        sys.stdout.writelines(f"{name:32} {value:.4g}\n" for name, value in figures.items() if isinstance(value, float))
        sys.stdout.write(
            f"{figures['hardware']}; seed 0; the figures of a shared machine spread, see the *_spread lines\n"
        )
    return 0


def measure(threads: int, repeats: int) -> dict[str, Any]:
    """All figures, by name."""
    import torch

    from zellige_ray.attention import trials as exchanges
    from zellige_ray.models import trials as models
    from zellige_ray.training.live_bytes import peak_bytes

    torch.set_num_threads(threads)
    short, short_spread = models.packed_over_serial(models.SHORT, repeats)
    mixed, mixed_spread = models.packed_over_serial(models.MIXED, max(2, repeats // 2))
    overhead = exchanges.exchange_overhead(repeats=repeats)
    return {
        "packed_over_serial_short": short,
        "packed_over_serial_short_spread": short_spread,
        "packed_over_serial": mixed,
        "packed_over_serial_spread": mixed_spread,
        "coalesced_over_separate": exchanges.coalesced_over_separate(repeats=2 * repeats),
        "overlapped_over_not": exchanges.overlapped_over_not(None, repeats=repeats),
        "overlapped_over_not_slow_link": exchanges.overlapped_over_not(2e7, repeats=repeats),
        "memory_over_plain": models.memory_over_plain(peak_bytes),
        "layer_exchange_ms": overhead["exchange_ms"],
        "layer_attention_ms": overhead["attention_ms"],
        "hardware": f"{os.cpu_count()} CPUs, {threads} threads, torch {torch.__version__}",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(measure(options.threads, options.repeats)) + "\n")
