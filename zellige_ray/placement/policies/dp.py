"""Policy `dp`: whole sequences, longest first, each to the rank that would finish it first."""

from __future__ import annotations

from heapq import heapify, heapreplace

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.pack import pack_round
from zellige_ray.placement.plan import Round


def place_dp(batch: Batch, cluster: Cluster, cost: CostModel, argument: str = "") -> Round:
    """Whole sequences, longest first, to the least loaded rank (load over speed)."""
    if argument:
        raise PlanError(f"policy dp takes no argument, got {argument!r}")
    work = (batch.linear_S + batch.attention_S).tolist()
    return pack_round(batch, cost.model.heads, np.array(longest_first(work, cluster.speed), dtype=np.int64))


def longest_first(work: list[float], speed: tuple[float, ...]) -> list[int]:
    """The rank of each piece of work in the given order: always the least loaded, ties to the lower rank."""
    heap = [(0.0, rank) for rank in range(len(speed))]
    heapify(heap)
    out = []
    for w in work:
        load, rank = heap[0]
        out.append(rank)
        heapreplace(heap, (load + w / speed[rank], rank))
    return out
