"""Groups: the ranks that must meet, which are the connected components of the rank graph of a round."""

from __future__ import annotations

import networkx as nx

from zellige_ray.placement.plan import Round


def rank_graph(round_: Round, world_size: int) -> nx.Graph:
    """Ranks as nodes, an edge between two ranks that hold parts (shards or tiles) of one sequence."""
    graph: nx.Graph = nx.Graph()
    graph.add_nodes_from(range(world_size))
    holders: dict[int, set[int]] = {}
    for rows in (round_.shards_K4, round_.tiles_M6):
        for sequence, rank in rows[:, :2].tolist():
            holders.setdefault(sequence, set()).add(rank)
    for ranks in holders.values():
        first, *rest = sorted(ranks)
        graph.add_edges_from((first, r) for r in rest)
    return graph


def components(round_: Round, world_size: int) -> list[tuple[int, ...]]:
    """Connected components of the rank graph, each ascending, ordered by their first rank."""
    return sorted(tuple(sorted(c)) for c in nx.connected_components(rank_graph(round_, world_size)))
