"""Stage two: whole sequences into what anchors leave, longest first."""

from __future__ import annotations

from heapq import heapify, heapreplace

from zellige_ray.placement.stages.pour import Pool, pool_wait
from zellige_ray.placement.stages.scene import Scene, during


def place_fillers(scene: Scene, pools: list[Pool]) -> list[int]:
    """The rank of every sequence, -1 for anchors; updates what the pools carry.

    First long fillers go where their attention hides an exchange; then each goes to the pool with the lowest level,
    and in it to the rank with the least filler work.
    """
    owner = [-1] * len(scene.tokens)
    cut = {j for pool in pools for j in pool.anchors}
    queue = [j for j in range(len(scene.tokens)) if j not in cut]
    speeds = [sum(scene.speed[r] for r in p.ranks) for p in pools]
    waits = [
        pool_wait(
            scene, sum(scene.tokens[j] for j in p.anchors), len(p.ranks), len({scene.node_of[r] for r in p.ranks})
        )
        for p in pools
    ]
    loads = [[0.0] * len(p.ranks) for p in pools]
    anchored = [sum(scene.work[j] for j in p.anchors) + w * s for p, w, s in zip(pools, waits, speeds, strict=True)]
    fluid = list(anchored)
    if scene.overlap:
        queue = _hide(scene, pools, queue, owner, waits, fluid, speeds, loads)
    heap = [(fluid[c] / speeds[c], c) for c in range(len(pools))]
    heapify(heap)
    inner = [[(loads[c][k] / scene.speed[r], k) for k, r in enumerate(p.ranks)] for c, p in enumerate(pools)]
    for h in inner:
        heapify(h)
    for j in queue:
        height, c = heap[0]
        pool = pools[c]
        spot, k = inner[c][0]
        rank = pool.ranks[k]
        owner[j] = rank
        heapreplace(inner[c], (spot + scene.work[j] / scene.speed[rank], k))
        pool.linear[k] += scene.linear[j]
        pool.own[k] += scene.attention[j]
        heapreplace(heap, (height + scene.work[j] / speeds[c], c))
    return owner


def _hide(
    scene: Scene,
    pools: list[Pool],
    queue: list[int],
    owner: list[int],
    waits: list[float],
    fluid: list[float],
    speeds: list[float],
    loads: list[list[float]],
) -> list[int]:
    """Gives the longest fillers to ranks whose exchange is not hidden yet; returns the fillers that are left."""
    target = scene.target_s
    need = sorted(((-waits[c], c, k) for c, p in enumerate(pools) if p.anchors for k in range(len(p.ranks))))
    heap = list(need)
    heapify(heap)
    left: list[int] = []
    for at, j in enumerate(queue):
        if not heap or scene.attention[j] < 0.05 * waits[heap[0][1]]:
            left += queue[at:]
            break
        short, c, k = heap[0]
        pool, rank = pools[c], pools[c].ranks[k]
        speed = scene.speed[rank]
        gain = min(-short, scene.attention[j] / speed) * speed
        fits = fluid[c] + scene.work[j] - gain <= target * speeds[c] and loads[c][k] + scene.work[j] <= target * speed
        if -short <= 0.0 or not fits:
            left.append(j)
            if -short <= 0.0:
                left += queue[at + 1 :]
                break
            continue
        owner[j] = rank
        loads[c][k] += scene.work[j]
        pool.linear[k] += scene.linear[j]
        pool.own[k] += scene.attention[j]
        fluid[c] += scene.work[j] - gain
        heapreplace(heap, (short + scene.attention[j] / speed, c, k))
    return left


__all__ = ["during", "place_fillers"]
