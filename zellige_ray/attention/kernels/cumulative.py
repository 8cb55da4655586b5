"""Cumulative lengths: what the variable-length CUDA kernels take, bucketed so that one call holds segments of like
length.

A grid is launched for the longest segment of a call, so that one 64k segment beside 200 short ones starts millions of
empty blocks (facts of FlashAttention 2 and 3): a bucket spans at most a factor of 8 in length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from zellige_ray.attention.segments import Segments

BUCKET_FACTOR = 8


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Rows [q0, q1) and [k0, k1) of one kernel call, its cumulative lengths and its longest segment."""

    q0: int
    q1: int
    k0: int
    k1: int
    cu_q: Tensor
    cu_k: Tensor
    max_q: int
    max_k: int


def calls(segments: Segments, device: torch.device) -> Iterator[Call]:
    """The buckets of consecutive runs; segments come sorted by length, so there are few."""
    start = 0
    for stop in range(1, len(segments.runs) + 1):
        if stop < len(segments.runs) and _alike(segments, start, stop):
            continue
        part = segments.shifted(start, stop)
        first = segments.runs[start]
        lengths = torch.tensor([(0, 0), *part.lengths], dtype=torch.int32)
        cu = lengths.cumsum(0, dtype=torch.int32).to(device, non_blocking=True)
        yield Call(
            first.q_start,
            first.q_start + part.num_q,
            first.k_start,
            first.k_start + part.num_k,
            cu[:, 0].contiguous(),
            cu[:, 1].contiguous(),
            max(run.queries for run in part.runs),
            max(run.keys for run in part.runs),
        )
        start = stop


def _alike(segments: Segments, start: int, stop: int) -> bool:
    if not segments.bucketed:
        return True
    keys = [run.keys for run in segments.runs[start : stop + 1]]
    return max(keys) <= BUCKET_FACTOR * min(keys)
