"""Claim: compiling a plan of 300 sequences on 16 ranks, 24 heads, into one rank's layout takes at most 5 ms.

Run: python benchmarks/engine_layout.py [--json]. Lengths: the joint image and video mix of KnapFormer's published setup
(facts of its launch script: groups x batch x resolution x frames), jittered by 4 %, seed 0; planned by this
repository's own planner.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from zellige_ray.attention import compile_layout
from zellige_ray.placement import CostModel, HardwareProfile, ModelPreset, Sequence, make_plan
from zellige_ray.placement.plan import Round

# (groups, sequences per group, side in pixels, latent frames): tokens = (side / 16)^2 x frames
MIX = (
    (8, 4, 256, 1),
    (2, 5, 512, 1),
    (2, 5, 1024, 1),
    (4, 1, 2048, 1),
    (1, 10, 256, 1),
    (3, 1, 512, 1),
    (8, 2, 256, 25),
    (4, 1, 512, 25),
)


def mix_lengths(num_sequences: int, seed: int) -> list[int]:
    """Attention lengths, visual and text tokens together."""
    rng = np.random.default_rng(seed)
    kinds = [(side // 16) ** 2 * frames for groups, batch, side, frames in MIX for _ in range(groups * batch)]
    lengths = [kinds[int(rng.integers(len(kinds)))] for _ in range(num_sequences)]
    return [int(n * rng.uniform(0.96, 1.04)) + int(rng.integers(0, 393)) for n in lengths]


def planned(num_sequences: int, ranks: int, heads: int, seed: int) -> Round:
    """The first round of this repository's planner; it cuts little when there are many sequences per rank."""
    hardware = HardwareProfile("layout", 2, ranks // 2, 1 << 45, 3.5e14, 3.5e14, 2e11, 2.5e10, 2e-5)
    model = ModelPreset("layout", 28, heads * 128, heads, 4.0, "joint", 2, "full")
    sequences = [Sequence(f"s{i}", n) for i, n in enumerate(mix_lengths(num_sequences, seed))]
    return make_plan(sequences, hardware.cluster(), CostModel(hardware, model)).rounds[0]


def poured(num_sequences: int, ranks: int, heads: int, seed: int) -> Round:
    """Wrap-around: sequences poured over the ranks one after the other, tokens by their sum, heads by attention; one
    cut sequence at every border, and its tokens and its heads are cut at different places.
    """
    lengths = np.array(mix_lengths(num_sequences, seed))
    order = np.random.default_rng(seed).permutation(num_sequences)
    shards, tiles = [], []
    for weights, parts, out in (
        (np.ones(num_sequences), lengths, "shards"),
        (lengths.astype(float) ** 2 / heads, [heads] * num_sequences, "tiles"),
    ):
        total, at = sum(w * p for w, p in zip(weights, parts, strict=True)) / ranks, 0.0
        for s in order.tolist():
            work = weights[s] * parts[s]
            edges = sorted(
                {
                    0,
                    parts[s],
                    *(round((total * r - at) / work * parts[s]) for r in range(1, ranks) if at < total * r < at + work),
                }
            )
            for a, b in itertools.pairwise(edges):
                rank = min(int((at + work * (a + b) / 2 / parts[s]) / total), ranks - 1)
                if out == "shards":
                    shards.append((s, rank, a, b))
                else:
                    tiles.append((s, rank, a, b, 0, int(lengths[s])))
            at += work
    zeros = np.zeros(num_sequences, dtype=np.int64)
    return Round(
        tuple(f"s{i}" for i in range(num_sequences)), lengths, zeros, np.array(sorted(shards)), np.array(sorted(tiles))
    )


def measure(round_: Round, ranks: int, heads: int, repeats: int = 7) -> dict[str, float]:
    """Milliseconds per rank (median of repeats): the slowest rank's and the mean; wire rows of the slowest."""
    per_rank, rows = [], []
    for rank in range(ranks):
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            layout = compile_layout(round_, rank, heads)
            times.append(time.perf_counter() - began)
        per_rank.append(1e3 * float(np.median(times)))
        rows.append(layout.wire_rows.total)
    homes = [
        {s.rank for s in round_.shards() if s.sequence == i} | {t.rank for t in round_.tiles() if t.sequence == i}
        for i in range(len(round_.ids))
    ]
    return {
        "slowest_ms": max(per_rank),
        "mean_ms": float(np.mean(per_rank)),
        "cut_sequences": sum(len(h) > 1 for h in homes),
        "wire_rows_of_slowest": rows[int(np.argmax(per_rank))],
        "tokens": int(round_.tokens_S.sum()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    json_out = parser.parse_args().json
    results = {make.__name__: measure(make(300, 16, 24, 0), 16, 24) for make in (planned, poured)}
    print(
        json.dumps(results)
        if json_out
        else "\n".join(f"{name}: " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()) for name, row in results.items())
    )
