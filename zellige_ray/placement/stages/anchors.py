"""Stage one: which sequences are cut, and which ranks share them."""

from __future__ import annotations

from math import ceil

from zellige_ray.placement.stages.pour import Pool, pool_wait
from zellige_ray.placement.stages.scene import Scene


def form_pools(scene: Scene, threshold: float, widen: float) -> list[Pool]:
    """Pools of all ranks; ranks without anchors are pools of their own.

    threshold: sequences with more work than this share of the target are anchors. widen: share of the ranks that no
    anchor needs which pools take as well, to spread their exchange and to hide it behind more fillers.
    """
    anchors = _anchors(scene, threshold)
    spans, members = _to_nodes(scene, anchors)
    pools: list[Pool] = []
    for nodes, mine in zip(spans, members, strict=True):
        ranks = [r for k in nodes for r in scene.nodes[k]]
        pools += _split(scene, ranks, mine, widen, whole=len(nodes) > 1)
    return pools


def _anchors(scene: Scene, threshold: float) -> list[int]:
    limit = threshold * scene.target_s
    top = max(scene.speed)
    return [j for j, w in enumerate(scene.work) if w > limit * top] if scene.world_size > 1 else []


def _to_nodes(scene: Scene, anchors: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Node sets and the anchors of each: the largest first to the emptiest node; more than a node's worth joins nodes."""
    room = [sum(scene.speed[r] for r in ranks) * scene.target_s for ranks in scene.nodes]
    left = list(room)
    home = list(range(len(room)))
    members: list[list[int]] = [[] for _ in room]
    for j in sorted(anchors, key=lambda j: (-scene.work[j], j)):
        roots = sorted({home[k] for k in range(len(room))}, key=lambda k: (-left[k], k))
        best = roots[0]
        if len(roots) > 1 and scene.work[j] > max(room) * 1.02:
            need = scene.work[j]
            for other in roots[1:]:
                if left[best] >= need * 0.98:
                    break
                left[best] += left[other]
                members[best] += members[other]
                members[other] = []
                home = [best if h == other else h for h in home]
        members[best].append(j)
        left[best] -= scene.work[j]
    spans = [[k for k in range(len(room)) if home[k] == root] for root in range(len(room))]
    return [s for s in spans if s], [m for s, m in zip(spans, members, strict=True) if s]


def _split(scene: Scene, ranks: list[int], anchors: list[int], widen: float, whole: bool) -> list[Pool]:
    """Contiguous runs of ranks for the anchors of a node, then single ranks."""
    if not anchors:
        return [_pool([r], []) for r in ranks]
    if whole:
        return [_pool(ranks, anchors)]
    mean = sum(scene.speed[r] for r in ranks) / len(ranks)
    unit = scene.target_s * mean
    groups = [[scene.work[j] / unit, [j]] for j in anchors]
    width = [max(2, ceil(need - 0.02)) for need, _ in groups]
    while sum(width) > len(ranks) and len(groups) > 1:
        best = None
        for a in range(len(groups)):
            for b in range(a + 1, len(groups)):
                need = groups[a][0] + groups[b][0]
                save = width[a] + width[b] - max(2, ceil(need - 0.02))
                key = (save <= 0, need, a, b)
                if best is None or key < best[0]:
                    best = (key, a, b)
        _, a, b = best
        groups[a] = [groups[a][0] + groups[b][0], groups[a][1] + groups[b][1]]
        del groups[b]
        width = [max(2, ceil(need - 0.02)) for need, _ in groups]
    if sum(width) > len(ranks):
        width = [len(ranks)]
    extra = round(widen * (len(ranks) - sum(width)))
    for _ in range(extra):
        waits = [
            pool_wait(scene, sum(scene.tokens[j] for j in js), w, 1) for (_, js), w in zip(groups, width, strict=True)
        ]
        k = max(range(len(groups)), key=lambda i: (waits[i], -i))
        width[k] += 1
    pools, at = [], 0
    for (_, js), w in zip(groups, width, strict=True):
        pools.append(_pool(ranks[at : at + w], js))
        at += w
    return pools + [_pool([r], []) for r in ranks[at:]]


def _pool(ranks: list[int], anchors: list[int]) -> Pool:
    return Pool(list(ranks), list(anchors), [0.0] * len(ranks), [0.0] * len(ranks))
