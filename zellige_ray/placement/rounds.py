"""Rounds: how many accumulation rounds memory asks for, and which sequences go into which."""

from __future__ import annotations

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel

GIB = 1 << 30


def least_rounds(batch: Batch, cluster: Cluster, cost: CostModel) -> int:
    """The least number of rounds whose tokens fit on all ranks together.

    Raises PlanError, with the bytes needed and available, when the state fits on no rank or the longest sequence does
    not fit on all ranks together.
    """
    size = cluster.world_size
    capacity = cost.memory.token_capacity(cluster)
    state_P = cost.memory.state_bytes(cluster.node_of_rank)
    if capacity.max() < 1:
        raise PlanError(
            f"model {cost.model.name!r}: parameters, gradients and optimizer need {state_P.min() / GIB:.2f} GiB on "
            f"each of {size} ranks, the largest has {max(cluster.memory_bytes) / GIB:.2f} GiB; raise nodes or "
            "memory_bytes, or set state: fsdp"
        )
    if capacity.min() < 0:
        rank = int(capacity.argmin())
        raise PlanError(
            f"model {cost.model.name!r}: parameters, gradients and optimizer need {state_P[rank] / GIB:.2f} GiB, rank "
            f"{rank} has {cluster.memory_bytes[rank] / GIB:.2f} GiB; raise memory_bytes, or leave the rank out"
        )
    total = float(capacity.sum())
    if batch.tokens_S[0] > total:
        per_token = cost.memory.token_bytes()
        need, have = float(batch.tokens_S[0]) * per_token, total * per_token
        raise PlanError(
            f"sequence {batch.ids[0]} ({batch.tokens_S[0]} tokens) needs {need / GIB:.2f} GiB of activations, all "
            f"{size} ranks together have {have / GIB:.2f} GiB beside the model state; raise nodes, or set "
            f"checkpointing: full"
        )
    return min(len(batch), max(1, int(np.ceil(float(batch.tokens_S.sum()) / total))))


def split_rounds(batch: Batch, num: int) -> list[Batch]:
    """The batch in `num` rounds of like tokens: longest first, each to the round with the fewest tokens so far."""
    if num == 1:
        return [batch]
    tokens, members = [0] * num, [[] for _ in range(num)]  # type: ignore[var-annotated]
    for index, length in enumerate(batch.tokens_S.tolist()):
        k = min(range(num), key=tokens.__getitem__)
        tokens[k] += length
        members[k].append(index)
    return [batch.take(np.array(m, dtype=np.int64)) for m in members]
