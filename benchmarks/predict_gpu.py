"""Claim (not measured by us, for want of a GPU): on one CUDA GPU the makespan and the peak memory of plans on one rank
are predicted as well as on CPU, within 5 % and 1.5 %.

Run: python benchmarks/predict_gpu.py [--heads 16] [--layers 12]. `zellige bench predict` on one rank in bfloat16, with
pictures and clips of up to 27,648 tokens; then attention by the profile's own probe against the device's matrix rate.
Everything but the device is what runs on CPU: `--device cpu --heads 2 --layers 2 --scale 1` tries it out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from zellige_ray.attention.choice import choose_kernel
from zellige_ray.cli import main as zellige
from zellige_ray.training.profile_kernels import KernelProbe

HEAD_DIM, MATRIX, TIMED = 128, 8192, 5
LENGTHS = (256, 1024, 4096, 16384)


def clock(device: torch.device) -> float:
    """Seconds, with all of the device's work done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def matrix_rate(device: torch.device, size: int) -> float:
    """FLOP/s of a square product in bfloat16."""
    a = torch.randn((size, size), device=device, dtype=torch.bfloat16)
    seconds = []
    for _ in range(TIMED + 1):
        began = clock(device)
        torch.mm(a, a)
        seconds.append(clock(device) - began)
    return 2 * size**3 / statistics.median(seconds[1:])


def attention_rates(device: torch.device, heads: int, length: int) -> tuple[float, float]:
    """FLOP/s of whole segments of this length, forward and backward (2.5 times the work)."""
    like = torch.empty(0, dtype=torch.bfloat16, device=device)
    kernel = choose_kernel("auto", device, like.dtype)
    probe = KernelProbe(kernel, heads, HEAD_DIM, like, False, lambda: clock(device))
    runs = [probe.time(length, length, whole=True) for _ in range(TIMED + 1)][1:]
    flops = 4 * HEAD_DIM * length**2 * runs[0][2]
    return flops / statistics.median(r[0] for r in runs), 2.5 * flops / statistics.median(r[1] for r in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--scale", type=int, default=4)
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here", file=sys.stderr)
        return 2
    sizes = ["--heads", args.heads, "--head-dim", HEAD_DIM, "--layers", args.layers, "--scale", args.scale]
    code = zellige(["bench", "predict", "--ranks", "1", "--dtype", "bfloat16", "--repeats", "3", *map(str, sizes)])
    cuda = device.type == "cuda"
    peak = matrix_rate(device, MATRIX if cuda else 512)
    print(f"matrix product {peak / 1e12:.2f} TFLOP/s")
    for length in LENGTHS if cuda else LENGTHS[:2]:
        forward, backward = attention_rates(device, args.heads, length)
        print(f"attention of {length:>6} tokens: forward {forward / peak:.0%}, backward {backward / peak:.0%} of it")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
