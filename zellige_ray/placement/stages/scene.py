"""The scene: what the stages need of a batch and a cluster, as plain Python lists, which are fastest here."""

from __future__ import annotations

from dataclasses import dataclass

from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel

TIGHT = 0.55  # share of all memory for tokens above which ranks are watched
FULL = 0.75  # share above which ranks of a node share anchors, so that their tokens are level
SMALL = 4  # sequences per rank, up to which more layouts are weighed
BUFFERED = 3.2  # rows of hidden width per token that are left for exchange buffers: q, k, v and some slack


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """Sequences longest first, ranks by node. Units: seconds per layer at speed 1.

    row_s: one row of a head quantum on a link, in the node and across nodes. meeting_s: what ranks that share wait for
    each other in one direction, whatever they send. quanta: head quanta of the model (its key heads). target_s: work
    over speeds, the ideal time of a rank. cap: tokens that fit on each rank. tight, full: is memory so short that
    placing must look at it, that tokens must be level. short_token_s: work of a token of the shortest sequence. small:
    are there so few sequences that more layouts are weighed. passes: each pass's share of compute and of exchange; own
    attention hides a wait fully from hidden_at times the wait.
    """

    tokens: list[int]
    linear: list[float]
    attention: list[float]
    work: list[float]
    speed: tuple[float, ...]
    nodes: tuple[tuple[int, ...], ...]
    node_of: tuple[int, ...]
    row_s: tuple[float, float]
    latency_s: float
    meeting_s: float
    quanta: int
    group: int
    kv_share: float
    target_s: float
    cap: tuple[float, ...]
    tight: bool
    full: bool
    short_token_s: float
    small: bool
    passes: tuple[tuple[float, float], ...]
    hidden_at: float
    overlap: bool

    @property
    def world_size(self) -> int:
        return len(self.speed)

    def late(self, peers: float) -> float:
        """What one direction of a rank's exchanges with so many peers takes, its bytes left out."""
        return self.meeting_s + peers * self.latency_s if peers > 0 else 0.0


def make_scene(batch: Batch, cluster: Cluster, cost: CostModel) -> Scene:
    """The scene of a batch."""
    hw, group = cost.hardware, cost.model.head_group
    linear, attention = batch.linear_S.tolist(), batch.attention_S.tolist()
    target_s = (sum(linear) + sum(attention)) / sum(cluster.speed)
    nodes = cluster.ranks_by_node()
    node_of = [0] * cluster.world_size
    for k, ranks in enumerate(nodes):
        for r in ranks:
            node_of[r] = k
    tokens = float(batch.tokens_S.sum())
    passes = tuple(zip(cost.compute_shares, cost.exchange_shares, strict=True))
    quantum = cost.row_bytes * group
    size = cluster.world_size
    buffers = BUFFERED * cost.model.hidden * cost.model.dtype_bytes / cost.memory.token_bytes()
    cap = tuple((cost.memory.token_capacity(cluster) / (1 + buffers)).tolist())
    return Scene(
        tokens=batch.tokens_S.tolist(),
        linear=linear,
        attention=attention,
        work=(batch.linear_S + batch.attention_S).tolist(),
        speed=cluster.speed,
        nodes=nodes,
        node_of=tuple(node_of),
        row_s=(quantum / hw.intra_node_bytes_per_s, quantum / hw.inter_node_bytes_per_s),
        latency_s=cost.latency_s,
        meeting_s=cost.meeting_s(target_s),
        quanta=cost.model.heads // group,
        group=group,
        kv_share=1.0 / group,
        target_s=target_s,
        cap=cap,
        tight=tokens > TIGHT * size * min(cap),
        full=tokens > FULL * sum(cap),
        small=len(batch) <= SMALL * size,
        short_token_s=float(batch.linear_S[-1] + batch.attention_S[-1]) / float(batch.tokens_S[-1]),
        passes=passes,
        hidden_at=max([e / c for c, e in passes]),
        overlap=cost.overlap,
    )
