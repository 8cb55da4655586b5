"""Policy `memory`: every sequence over all ranks in proportion to their memory; slow, but fits where anything does."""

from __future__ import annotations

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.pack import pack_round
from zellige_ray.placement.plan import Round
from zellige_ray.placement.stages.pour import rects


def place_memory(batch: Batch, cluster: Cluster, cost: CostModel, argument: str = "") -> Round:
    """Tokens and attention by the memory that ranks have beside the model state."""
    if argument:
        raise PlanError(f"policy memory takes no argument, got {argument!r}")
    size, group = cluster.world_size, cost.model.head_group
    room = np.maximum(0.0, cost.memory.token_capacity(cluster))
    borders = np.concatenate([[0.0], np.cumsum(room) / room.sum()]).tolist()
    quanta = cost.model.heads // group
    shards, tiles = [], []
    for index, tokens in enumerate(batch.tokens_S.tolist()):
        for rank in range(size):
            low, high = borders[rank], borders[rank + 1] if rank + 1 < size else 1.0
            start, stop = int(low * tokens), int(high * tokens)
            if stop > start:
                shards.append((index, rank, start, stop))
            for h0, h1, q0, q1 in rects(low * quanta, high * quanta, tokens):
                tiles.append((index, rank, h0 * group, h1 * group, q0, q1))
    return pack_round(batch, cost.model.heads, np.full(len(batch), -1, dtype=np.int64), shards, tiles)
