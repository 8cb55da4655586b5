"""Policy `cp`: every sequence evenly over all ranks of a node, or over the whole cluster with `cp:cluster`."""

from __future__ import annotations

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.model import ModelPreset
from zellige_ray.placement.pack import even_rows, pack_round
from zellige_ray.placement.plan import Round
from zellige_ray.placement.policies.dp import longest_first


def place_cp(batch: Batch, cluster: Cluster, cost: CostModel, argument: str = "") -> Round:
    """Even context parallelism: longest first to the least loaded node (or the cluster), cut over all its ranks."""
    if argument not in ("", "node", "cluster"):
        raise PlanError(f"policy cp:{argument} is unknown, use cp, cp:node or cp:cluster")
    groups = (tuple(range(cluster.world_size)),) if argument == "cluster" else cluster.ranks_by_node()
    speeds = tuple(sum(cluster.speed[r] for r in ranks) for ranks in groups)
    work = (batch.linear_S + batch.attention_S).tolist()
    return place_even(batch, cost.model, [groups[k] for k in longest_first(work, speeds)])


def place_even(batch: Batch, model: ModelPreset, ranks_of: list[tuple[int, ...]]) -> Round:
    """Every sequence evenly over its ranks; on a single rank it is whole."""
    whole = np.array([ranks[0] if len(ranks) == 1 else -1 for ranks in ranks_of], dtype=np.int64)
    shards, tiles = [], []
    for index, (tokens, ranks) in enumerate(zip(batch.tokens_S.tolist(), ranks_of, strict=True)):
        if len(ranks) > 1:
            rows = even_rows(index, tokens, model.heads, ranks, model.head_group)
            shards += rows[0]
            tiles += rows[1]
    return pack_round(batch, model.heads, whole, shards, tiles)
