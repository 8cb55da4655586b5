"""Claim (not measured by us, for want of a GPU): on one CUDA GPU, bucketed calls run at >= 90 % forward and >= 85 %
backward of the best dense call, packing at >= 80 % of the copy bandwidth.

Run: python benchmarks/engine_gpu.py [--kernel varlen|flash] [--heads 24]. bfloat16, head dim 128, CUDA events, 3
warm-ups, 10 timed calls, medians. Batches: B1 one 64k anchor share (3 heads) with 40 fillers, B2 three anchors with 120
pictures, B3 fillers only, B4 anchors only, B5 one 128k with 400 pictures. Layouts: a call per sequence, one flat call
(every head is a segment), two calls (fillers with all heads, anchors flat), bucketed by length.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from zellige_ray.attention.copying import write_wire
from zellige_ray.attention.kernels import Kernel, get_kernel
from zellige_ray.attention.reference import reference_attention
from zellige_ray.attention.segments import pack_segments
from zellige_ray.attention.tables import Copy

DIM, WARM_UPS, TIMED = 128, 3, 10
BATCHES = {  # name: anchors (tokens, heads), fillers (tokens)
    "B1": ([(65536, 3)], [256 + 96 * i for i in range(40)]),
    "B2": ([(65536, 3), (32768, 3), (16384, 6)], [1024] * 120),
    "B3": ([], [256 + 96 * i for i in range(40)]),
    "B4": ([(65536, 3), (32768, 3), (16384, 6)], []),
    "B5": ([(131072, 1)], [256] * 400),
}


def milliseconds(run: Callable[[], None]) -> float:
    """Median of CUDA event times."""
    times = []
    for i in range(WARM_UPS + TIMED):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        if i >= WARM_UPS:
            times.append(start.elapsed_time(stop))
    return statistics.median(times)


class Call:
    """Operands of one kernel call, ready to run forward and backward."""

    def __init__(self, kernel: Kernel, lengths: list[tuple[int, int, int]], heads: int) -> None:
        self.kernel, self.segments = kernel, pack_segments(lengths)
        shape = (self.segments.num_q, heads, DIM)
        self.q, self.k, self.v, self.grad = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        self.o, self.outs = torch.empty_like(self.q), tuple(torch.empty_like(self.q) for _ in range(3))
        self.flops = sum(4 * heads * q * k * DIM for q, k in self.segments.lengths)

    def forward(self) -> None:
        self.lse = self.kernel.forward(self.q, self.k, self.v, self.segments, self.o, False)

    def backward(self, deterministic: bool) -> None:
        operands = (self.grad, self.q, self.k, self.v, self.o, self.lse)
        self.kernel.backward(*operands, self.segments, self.outs, deterministic)  # type: ignore[arg-type]


def layouts(kernel: Kernel, anchors: list[tuple[int, int]], fillers: list[int], heads: int) -> dict[str, list[Call]]:
    whole = [(1, n, n) for n in sorted(fillers, reverse=True)]
    tiles = [(h, n, n) for n, h in anchors]
    flat = [*tiles, *((heads * count, q, k) for count, q, k in whole)]
    out = {"loop": [Call(kernel, [x], heads) for x in whole] + [Call(kernel, [x], 1) for x in tiles]}
    out["two calls"] = [Call(kernel, part, n) for part, n in ((whole, heads), (tiles, 1)) if part]
    out["flat"] = [Call(kernel, flat, 1)]
    for call in (*out["two calls"], *out["flat"]):  # one launch each, whatever the lengths
        call.segments = replace(call.segments, bucketed=False)
    out["bucketed"] = [Call(kernel, part, n) for part, n in ((whole, heads), (tiles, 1)) if part]
    return out


def pack_share(heads: int, tokens: int = 32768) -> float:
    """Bandwidth of packing rows of q, as a share of a plain copy of the same bytes."""
    rows = torch.randn(tokens * heads, DIM, device="cuda", dtype=torch.bfloat16)
    wire, copy = torch.empty_like(rows), torch.empty_like(rows)
    whole = Copy(heads, tokens, 0, 1, heads, 0, tokens)
    return milliseconds(lambda: copy.copy_(rows) and None) / milliseconds(lambda: write_wire([whole], rows, wire))


def parity(kernel: Kernel, heads: int) -> float:
    """Largest difference from the float64 reference, in bfloat16."""
    call = Call(kernel, [(1, n, n) for n in (515, 64, 17, 1)], heads)
    call.forward()
    want = reference_attention(call.q, call.k, call.v, call.segments.lengths)
    return float((call.o.double() - want).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="varlen")
    parser.add_argument("--heads", type=int, default=24)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; torch sees none")
    kernel = get_kernel(options.kernel)
    dense = Call(kernel, [(1, 16384, 16384)], options.heads)
    best = [
        dense.flops / milliseconds(dense.forward) / 1e9,
        2.5 * dense.flops / milliseconds(lambda: dense.backward(False)) / 1e9,
    ]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, kernel {kernel.name}, bfloat16")
    print(f"{options.heads} heads x {DIM}, {WARM_UPS} warm-ups, {TIMED} timed calls, medians")
    print(f"dense 16k: forward {best[0]:.0f}, backward {best[1]:.0f} TFLOP/s")
    print(f"largest difference from float64: {parity(kernel, options.heads):.2g}")
    print(f"packing: {pack_share(options.heads):.0%} of the copy bandwidth")
    print(f"{'batch':6}{'layout':12}{'forward':>9}{'share':>7}{'backward':>10}{'share':>7}{'determ.':>9}")
    for name, (anchors, fillers) in BATCHES.items():
        for layout, calls in layouts(kernel, anchors, fillers, options.heads).items():
            flops = sum(c.flops for c in calls)
            forward = flops / milliseconds(lambda calls=calls: [c.forward() for c in calls] and None) / 1e9
            rates = [
                2.5 * flops / milliseconds(lambda calls=calls, d=d: [c.backward(d) for c in calls] and None) / 1e9
                for d in (False, True)
            ]
            print(
                f"{name:6}{layout:12}{forward:9.0f}{forward / best[0]:7.0%}"
                f"{rates[0]:10.0f}{rates[0] / best[1]:7.0%}{rates[1]:9.0f}"
            )


if __name__ == "__main__":
    main()
