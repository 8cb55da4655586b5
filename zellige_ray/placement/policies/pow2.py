"""Policy `pow2`: Megatron-style groups of a power of two ranks, aligned, chosen by length, filled in waves.

A sequence gets the least power of two that brings its tokens per rank under a limit (`pow2:8192`; by default the best
of a few usual limits). Longest first, each goes to the least loaded aligned window of its size.
"""

from __future__ import annotations

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Round
from zellige_ray.placement.policies.cp import place_even
from zellige_ray.placement.timeline import time_round

LIMITS = (1024, 2048, 4096, 8192, 16384)  # tokens per rank


def place_pow2(batch: Batch, cluster: Cluster, cost: CostModel, argument: str = "") -> Round:
    """Aligned power-of-two windows; argument: tokens per rank above which a sequence gets twice the ranks."""
    if argument and not (argument.isdecimal() and int(argument) > 0):
        raise PlanError(f"policy pow2:{argument}: the limit must be a positive number of tokens per rank")
    limits = (int(argument),) if argument else LIMITS
    rounds = [_place(batch, cluster, cost, limit) for limit in limits]
    return min(rounds, key=lambda r: round(time_round(r, cluster, cost).layer_s * 1e12))


def _place(batch: Batch, cluster: Cluster, cost: CostModel, limit: int) -> Round:
    size = cluster.world_size
    load = [0.0] * size
    work = (batch.linear_S + batch.attention_S).tolist()
    ranks_of = []
    for tokens, w in zip(batch.tokens_S.tolist(), work, strict=True):
        degree = 1
        while tokens > limit * degree and 2 * degree <= size:
            degree *= 2
        starts = range(0, size - degree + 1, degree)
        start = min(starts, key=lambda a: (max(load[a : a + degree]), a))
        ranks = tuple(range(start, start + degree))
        for r in ranks:
            load[r] += w / degree / cluster.speed[r]
        ranks_of.append(ranks)
    return place_even(batch, cost.model, ranks_of)
