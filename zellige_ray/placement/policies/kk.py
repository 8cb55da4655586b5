"""Policy `kk`: whole sequences by Karmarkar and Karp's largest differencing, as trainers balance their ranks."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.pack import pack_round
from zellige_ray.placement.plan import Round


def place_kk(batch: Batch, cluster: Cluster, cost: CostModel, argument: str = "") -> Round:
    """Whole sequences, partitioned by largest differencing; ranks are taken as equal, heavier sets to faster ranks."""
    if argument:
        raise PlanError(f"policy kk takes no argument, got {argument!r}")
    sets = largest_differencing((batch.linear_S + batch.attention_S).tolist(), cluster.world_size)
    fast = sorted(range(cluster.world_size), key=lambda r: (-cluster.speed[r], r))
    whole = np.zeros(len(batch), dtype=np.int64)
    for rank, members in zip(fast, sets, strict=True):
        whole[members] = rank
    return pack_round(batch, cost.model.heads, whole)


def largest_differencing(work: list[float], parts: int) -> list[list[int]]:
    """`parts` sets of indices with like sums, the largest first: the two most uneven partitions merge, crosswise."""
    State = tuple[float, int, list[tuple[float, list[int]]]]
    heap: list[State] = [(-w, j, [(w, [j])] + [(0.0, []) for _ in range(parts - 1)]) for j, w in enumerate(work)]
    heapify(heap)
    while len(heap) > 1:
        _, j, first = heappop(heap)
        _, _, second = heappop(heap)
        merged = [(a + b, x + y) for (a, x), (b, y) in zip(first, reversed(second), strict=True)]
        merged.sort(key=lambda s: -s[0])
        heappush(heap, (merged[-1][0] - merged[0][0], j, merged))
    return [members for _, members in heap[0][2]]
