"""A cluster: ranks with their nodes, memory and speed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zellige_ray.errors import PlanError

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class Cluster:
    """Ranks 0..P-1, each on a node, with its memory and its speed relative to the profile's rates.

    Raises PlanError for no ranks, fields of different lengths, and memory or speeds that are not positive and finite.
    """

    node_of_rank: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    speed: tuple[float, ...]

    def __post_init__(self) -> None:
        size = len(self.node_of_rank)
        if size == 0:
            raise PlanError("cluster has 0 ranks, at least 1 is needed; raise nodes or ranks_per_node")
        if len(self.memory_bytes) != size or len(self.speed) != size:
            raise PlanError(
                f"cluster has {size} ranks, but memory of {len(self.memory_bytes)} and speeds of {len(self.speed)}"
            )
        for rank, (memory, speed) in enumerate(zip(self.memory_bytes, self.speed, strict=True)):
            if not (math.isfinite(speed) and speed > 0):
                raise PlanError(f"speed of rank {rank} is {speed}, it must be positive and finite; set speed")
            if not (math.isfinite(memory) and memory > 0):
                raise PlanError(f"memory of rank {rank} is {memory} bytes, it must be positive; set memory_bytes")

    @property
    def world_size(self) -> int:
        return len(self.node_of_rank)

    @classmethod
    def uniform(cls, nodes: int, ranks_per_node: int, memory_bytes: int) -> Cluster:
        """`nodes` x `ranks_per_node` equal ranks, ranks of a node next to each other."""
        size = max(0, nodes) * max(0, ranks_per_node)
        return cls(tuple(r // ranks_per_node for r in range(size)), (memory_bytes,) * size, (1.0,) * size)

    def ranks_by_node(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each node, ascending; nodes ordered by their first rank."""
        nodes: dict[int, list[int]] = {}
        for rank, node in enumerate(self.node_of_rank):
            nodes.setdefault(node, []).append(rank)
        return tuple(tuple(ranks) for ranks in nodes.values())

    def graph(self) -> nx.Graph:
        """Ranks as nodes (`node`, `memory_bytes`, `speed`), links as edges (`span`: `intra` or `inter`)."""
        import networkx as nx  # here, because planning needs no graph and should start at once

        graph: nx.Graph = nx.Graph()
        for rank, node in enumerate(self.node_of_rank):
            graph.add_node(rank, node=node, memory_bytes=self.memory_bytes[rank], speed=self.speed[rank])
        for a in range(self.world_size):
            for b in range(a + 1, self.world_size):
                same = self.node_of_rank[a] == self.node_of_rank[b]
                graph.add_edge(a, b, span="intra" if same else "inter")
        return graph
