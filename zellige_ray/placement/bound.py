"""Lower bounds: times that no plan of a batch can beat, by work alone and by the traffic that one sequence forces."""

from __future__ import annotations

from collections.abc import Iterable

from zellige_ray.placement.batch import Batch, make_batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.sequence import Sequence


def lower_bound_s(sequences: Iterable[Sequence], cluster: Cluster, cost: CostModel) -> float:
    """The tightest of the bounds below, for a whole step. Units: seconds."""
    return batch_bound_s(make_batch(sequences, cost), cluster, cost)


def batch_bound_s(batch: Batch, cluster: Cluster, cost: CostModel) -> float:
    """Work over the sum of speeds, or where tighter what the longest sequence must send over links or between nodes.

    Units: seconds. Per-round fixed costs are not counted.
    """
    work = float(batch.linear_S.sum() + batch.attention_S.sum()) / sum(cluster.speed)
    if len(batch) == 0 or cluster.world_size == 1:
        return work * cost.model.layers
    longest = max(
        work, _forced(batch, cluster, cost, work, nodes=False), _forced(batch, cluster, cost, work, nodes=True)
    )
    return longest * cost.model.layers


def _forced(batch: Batch, cluster: Cluster, cost: CostModel, floor_s: float, nodes: bool) -> float:
    """Bound from the longest sequence over places (ranks, or nodes with all their ranks). Units: seconds per layer.

    A place with shares x of the tokens and a of the attention of a sequence works x lin + a att, and its ranks receive
    at least 2 a (1 - x) of all (token, head) rows from outside. Own work may hide the wait but then adds at least as
    much. So T * sum(speed) >= work of the sequence + 2 rows (1 - sum a x) / rate, averaged over all ranks, with
    x lin + a att <= T * speed of the place, hence sum a x <= max x <= T speed / lin, and likewise for att.
    """
    linear, attention = float(batch.linear_S[0]), float(batch.attention_S[0])
    speeds = (
        [sum(cluster.speed[r] for r in ranks) for ranks in cluster.ranks_by_node()] if nodes else list(cluster.speed)
    )
    if len(speeds) == 1:
        return 0.0
    hw, top = cost.hardware, max(speeds)
    across = hw.inter_node_bytes_per_s if len(set(cluster.node_of_rank)) > 1 else 0.0
    rate = across if nodes else hw.intra_node_bytes_per_s + across  # both links of a rank work at once
    kv_heads = cost.model.heads / cost.model.head_group
    wire_s = 2 * float(batch.tokens_S[0]) * kv_heads * cost.row_bytes / rate * min(cluster.speed)
    total = sum(cluster.speed)

    def least(bound: float) -> float:
        share = min(1.0, bound * top / linear, bound * top / attention)
        product = min(share, (bound * top) ** 2 / (4 * linear * attention) * len(speeds))
        return (linear + attention + wire_s * (1 - product)) / total

    low, high = floor_s, least(floor_s)
    for _ in range(40):  # least() falls with its argument: what is below its fixed point is a bound
        middle = (low + high) / 2
        low, high = (middle, high) if middle < least(middle) else (low, middle)
    return low
