"""Overlap: which fillers compute their attention during the exchange in, and which during the exchange out."""

from __future__ import annotations

import dataclasses

import numpy as np

from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Round
from zellige_ray.placement.timeline import RoundTime


def with_overlap(round_: Round, time: RoundTime, cluster: Cluster, cost: CostModel) -> Round:
    """The round with its fillers assigned on ranks that exchange; the same round where nothing can overlap.

    The shortest fillers run during the exchange out, up to its share of both exchanges or as long as it takes; the
    others, which are more, during the exchange in.
    """
    wait_P = time.wait_P
    if not cost.overlap or not ((wait_P > 0) & (time.own_P > 0)).any():
        return round_
    shards = round_.shards_K4
    whole = ~time.cut_S[shards[:, 0]] & (wait_P[shards[:, 1]] > 0)
    sequence_F, rank_F = shards[whole, 0], shards[whole, 1]
    n_F = round_.tokens_S[sequence_F]
    own_F = cost.attention_cell_s(n_F) * cost.model.heads * n_F * n_F / np.array(cluster.speed)[rank_F]
    order = np.lexsort((sequence_F, own_F, rank_F))
    sequence_F, rank_F, own_F = sequence_F[order], rank_F[order], own_F[order]
    share_P = np.divide(time.wait_out_P, wait_P, out=np.zeros_like(wait_P), where=wait_P > 0)
    longest = max(e / c for c, e in zip(cost.compute_shares, cost.exchange_shares, strict=True))
    aim_P = np.minimum(time.own_P * share_P, time.wait_out_P * longest)
    start_F = np.searchsorted(rank_F, rank_F, side="left")
    before_F = np.cumsum(own_F) - own_F
    before_F -= before_F[start_F]
    late_F = before_F + own_F / 2 <= aim_P[rank_F]
    ids = round_.ids
    return dataclasses.replace(
        round_,
        first=tuple(ids[j] for j in np.sort(sequence_F[~late_F]).tolist()),
        second=tuple(ids[j] for j in np.sort(sequence_F[late_F]).tolist()),
    )
