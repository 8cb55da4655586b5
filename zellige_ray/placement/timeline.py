"""The timeline: ranks that share sequences meet twice per layer, at the exchange in and at the exchange out.

Per pass (forward, recompute, backward) and component: everybody's token-wise work, the exchange in, attention of the
tiles, the exchange out; attention of sequences that are whole on a rank runs while the exchanges are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import FloatArray, IntArray, Plan, Prediction, RankLoad, Round
from zellige_ray.placement.traffic import measure_traffic


@dataclass(frozen=True, slots=True, eq=False)
class RoundTime:
    """Seconds per layer of a round on P ranks, summed over passes.

    own_P: attention of sequences whole on the rank, part of attention_P. in_P, out_P: the rank's own exchange.
    wait_P, wait_out_P: both exchanges, and the second, of the slowest ranks of its component.
    exposed_P: what of the wait own attention does not hide.
    component_P: number of the component. time_C: seconds of each component. rows_P: rows on the wire, the larger way.
    moved_rows: rows on the wire, all ranks, one direction. cut_S: is the sequence on more than one rank. peak_P: bytes.
    """

    linear_P: FloatArray
    attention_P: FloatArray
    own_P: FloatArray
    in_P: FloatArray
    out_P: FloatArray
    wait_P: FloatArray
    wait_out_P: FloatArray
    exposed_P: FloatArray
    component_P: IntArray
    time_C: FloatArray
    tokens_P: IntArray
    rows_P: FloatArray
    moved_rows: float
    cut_S: NDArray[np.bool_]
    peak_P: FloatArray

    @property
    def layer_s(self) -> float:
        """Seconds of one layer, all passes: the slowest component."""
        return float(self.time_C.max())


def time_round(round_: Round, cluster: Cluster, cost: CostModel) -> RoundTime:
    """The timeline of one round, per layer."""
    size, shards, tiles = cluster.world_size, round_.shards_K4, round_.tiles_M6
    speed_P = np.array(cluster.speed)
    traffic = measure_traffic(round_, np.array(cluster.node_of_rank), cost.model.head_group)
    length_K = shards[:, 3] - shards[:, 2]
    token_s_S = cost.linear_token_s + cost.cross_token_s * round_.text_tokens_S
    shard_s = length_K * token_s_S[shards[:, 0]] + cost.piece_s
    linear_P = np.bincount(shards[:, 1], weights=shard_s, minlength=size) / speed_P
    row_s_S = cost.attention_cell_s(round_.tokens_S) * round_.tokens_S
    tile_s = (tiles[:, 3] - tiles[:, 2]) * (tiles[:, 5] - tiles[:, 4]) * row_s_S[tiles[:, 0]]
    attention_P = np.bincount(tiles[:, 1], weights=tile_s, minlength=size) / speed_P
    local_s = np.where(traffic.cut_S[tiles[:, 0]], 0.0, tile_s)
    own_P = np.bincount(tiles[:, 1], weights=local_s, minlength=size) / speed_P if cost.overlap else np.zeros(size)
    wire_WSP = np.maximum(traffic.sent_WSR, traffic.received_WSR)
    hw = cost.hardware
    rate_S1 = np.array([[hw.intra_node_bytes_per_s], [hw.inter_node_bytes_per_s]])
    way_WP = (wire_WSP * (cost.row_bytes / rate_S1)).max(axis=1) + cost.latency_s * traffic.peers_R
    way_WP += cost.meeting_s(float((linear_P + attention_P).mean())) * (traffic.peers_R > 0)
    component_P = number_components(traffic.links_L2, size)
    num = int(component_P.max()) + 1
    tokens_P = np.bincount(shards[:, 1], weights=length_K, minlength=size).astype(np.int64)
    rows_P = wire_WSP.sum(axis=1).max(axis=0)
    state_P = cost.memory.state_bytes(cluster.node_of_rank)
    wait_out_P = _most(way_WP[1], component_P, num)[component_P]
    wait_P = _most(way_WP[0], component_P, num)[component_P] + wait_out_P
    hidden_P = _during_exchange(own_P, wait_P, cost)
    busy_C = _most(linear_P, component_P, num) + _most(attention_P - own_P + hidden_P, component_P, num)
    return RoundTime(
        linear_P=linear_P,
        attention_P=attention_P,
        own_P=own_P,
        in_P=way_WP[0],
        out_P=way_WP[1],
        wait_P=wait_P,
        wait_out_P=wait_out_P,
        exposed_P=hidden_P - own_P,
        component_P=component_P,
        time_C=busy_C,
        tokens_P=tokens_P,
        rows_P=rows_P,
        moved_rows=float(traffic.sent_WSR.sum()),
        cut_S=traffic.cut_S,
        peak_P=state_P + cost.memory.work_bytes(round_, traffic, tokens_P, rows_P),
    )


def simulate(plan: Plan, cluster: Cluster, cost: CostModel, lower_bound_s: float | None = None) -> Prediction:
    """Step time, and what each rank does in it. Units: seconds.

    exchange_s of a rank is what it waits for exchanges that its own attention does not hide; linear, attention,
    exchange and idle of a rank sum to the step. lower_bound_s: that of the batch; default: of the plan's rounds.
    """
    return predict([time_round(r, cluster, cost) for r in plan.rounds], cluster, cost, lower_bound_s)


def predict(rounds: list[RoundTime], cluster: Cluster, cost: CostModel, lower_bound_s: float | None) -> Prediction:
    """As `simulate`, from timelines that are known already."""
    layers = cost.model.layers
    step_s = sum(r.layer_s for r in rounds) * layers
    linear = sum(r.linear_P for r in rounds) * layers
    attention = sum(r.attention_P for r in rounds) * layers
    exposed = sum(r.exposed_P for r in rounds) * layers
    tokens = sum(r.tokens_P for r in rounds)
    peak = np.max([r.peak_P for r in rounds], axis=0)
    columns = (linear, attention, exposed, step_s - linear - attention - exposed, peak, tokens)
    table = zip(*(np.asarray(c).tolist() for c in columns), strict=True)
    ranks = tuple(RankLoad(k, a, b, c, max(0.0, d), int(e), int(f)) for k, (a, b, c, d, e, f) in enumerate(table))
    if lower_bound_s is None:
        work = float((np.asarray(linear) + np.asarray(attention)) @ np.array(cluster.speed))
        lower_bound_s = work / sum(cluster.speed)
    return Prediction(step_s, lower_bound_s, ranks)


def number_components(links_L2: IntArray, size: int) -> IntArray:
    """The component of each rank, numbered by first rank, when the linked pairs of ranks belong together."""
    root = list(range(size))

    def find(x: int) -> int:
        while root[x] != x:
            root[x] = root[root[x]]
            x = root[x]
        return x

    for a, b in links_L2.tolist():
        low, high = sorted((find(a), find(b)))
        root[high] = low
    return np.unique([find(x) for x in range(size)], return_inverse=True)[1].astype(np.int64)


def _most(value_P: FloatArray, component_P: IntArray, num: int) -> FloatArray:
    out = np.zeros(num)
    np.maximum.at(out, component_P, value_P)
    return out


def _during_exchange(own_P: FloatArray, wait_P: FloatArray, cost: CostModel) -> FloatArray:
    """Time of local attention and exchange together, pass by pass: the longer of the two."""
    shares = zip(cost.compute_shares, cost.exchange_shares, strict=True)
    return np.asarray(sum(np.maximum(own_P * c, wait_P * e) for c, e in shares))
