"""Sequences to nodes: the long ones first to the emptiest node; what a node can't hold takes several."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heapreplace

from zellige_ray.placement.stages.pool import even_wait
from zellige_ray.placement.stages.scene import Scene

SWAPS = 6  # between sites, at most


@dataclass(slots=True)
class Site:
    """Nodes that are planned together, their ranks, and the long sequences that go there (longest first)."""

    nodes: list[int]
    ranks: list[int]
    members: list[int]
    work: float


def make_sites(scene: Scene, num_long: int, rank: int) -> list[Site] | None:
    """Sites of all nodes; the first num_long sequences are given to them, longest first, each to the emptiest.

    rank: 0 takes the best guess of how many nodes a giant needs, 1 the second best; None when there is none.
    """
    speeds = [sum([scene.speed[r] for r in ranks]) for ranks in scene.nodes]
    spans = _giants(scene, speeds, rank)
    if spans is None:
        return None
    taken = {k for nodes, _ in spans for k in nodes}
    spans += [([k], []) for k in range(len(speeds)) if k not in taken]
    sites = []
    for nodes, members in spans:
        ranks = [r for k in nodes for r in scene.nodes[k]]
        sites.append(Site(nodes, ranks, members, sum([scene.work[j] for j in members])))
    capacity = [sum([speeds[k] for k in site.nodes]) for site in sites]
    placed = {j for site in sites for j in site.members}
    heap = [(site.work / c, k) for k, (site, c) in enumerate(zip(sites, capacity, strict=True))]
    heapify(heap)
    for j in range(num_long):
        if j not in placed:
            height, k = heap[0]
            sites[k].members.append(j)
            sites[k].work += scene.work[j]
            heapreplace(heap, (height + scene.work[j] / capacity[k], k))
    if num_long == len(scene.work):
        _level(scene, sites, capacity)
    return sites


def _level(scene: Scene, sites: list[Site], capacity: list[float]) -> None:
    """Swaps a long sequence of the fullest site for a shorter one of the emptiest while that brings both closer."""
    for _ in range(SWAPS):
        heights = [site.work / c for site, c in zip(sites, capacity, strict=True)]
        a, b = heights.index(max(heights)), heights.index(min(heights))
        want = (heights[a] - heights[b]) / (1 / capacity[a] + 1 / capacity[b])
        if want < 0.002 * scene.target_s * min(capacity[a], capacity[b]):
            return
        options = [(abs(scene.work[u] - want), u, -1) for u in sites[a].members]
        pairs = [(scene.work[u] - scene.work[v], u, v) for u in sites[a].members for v in sites[b].members]
        options += [(abs(gain - want), u, v) for gain, u, v in pairs if gain > 0.0]
        off, u, v = min(options)
        if off >= want * 0.9 or len(sites[a].nodes) > 1 or len(sites[b].nodes) > 1:
            return
        for site, out, into in ((sites[a], u, v), (sites[b], v, u)):
            site.members = sorted([j for j in site.members if j != out] + ([into] if into >= 0 else []))
            site.work = sum([scene.work[j] for j in site.members])


def _giants(scene: Scene, speeds: list[float], rank: int) -> list[tuple[list[int], list[int]]] | None:
    """Node sets for sequences that finish sooner on several nodes than on one, by work and exchange."""
    free = sorted(range(len(speeds)), key=lambda k: (-speeds[k], k))
    out: list[tuple[list[int], list[int]]] = []
    for j in range(min(len(scene.work), len(speeds))):
        holds = [sum([scene.cap[r] for r in scene.nodes[k]]) for k in free]
        if len(free) < 2 or (scene.work[j] <= speeds[free[0]] * scene.target_s and scene.tokens[j] <= holds[0]):
            break
        options = []
        for count in range(1, len(free) + 1):
            if scene.tokens[j] > sum(holds[:count]) and count < len(free):
                continue
            width = sum([len(scene.nodes[k]) for k in free[:count]])
            share = scene.work[j] / sum([speeds[k] for k in free[:count]])
            time = max(scene.target_s, share) + (even_wait(scene, scene.tokens[j], width, count) if width > 1 else 0.0)
            options.append((time, count))
        options.sort()
        count = options[min(rank, len(options) - 1)][1]
        out.append((sorted(free[:count]), [j]))
        free = free[count:]
    return out if out or rank == 0 else None
