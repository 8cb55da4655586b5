"""Stage two: whole sequences into what anchors leave, longest first; one that fits nowhere is cut after all."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from zellige_ray.placement.stages.nodes import Site
from zellige_ray.placement.stages.fluid import pool_time
from zellige_ray.placement.stages.pool import Pool, merge
from zellige_ray.placement.stages.scene import Scene

SLACK = 0.004  # of the target: what a whole sequence may stand out
SPARE = 0.04  # of the target: what stands out further is cut


def place_long(
    scene: Scene, site: Site, pools: list[Pool], target_s: float, spilling: bool, owner: dict[int, int]
) -> tuple[list[Pool], bool]:
    """The site's long fillers, each to the rank with most room, first where its attention hides an exchange.

    Fills owner (sequence -> rank). Returns the pools, merged where a sequence was cut over several, and whether one
    stands out: found no room, whether it was cut (spilling) or not.
    """
    cut = {j for pool in pools for j in pool.anchors}
    spill: list[int] = []
    stands_out = False
    rooms = [pool.speed * (target_s - pool.wait) - pool.work for pool in pools]
    least = [0] * len(pools)
    slack, spare = SLACK * target_s, SPARE * target_s
    for j in site.members:
        if j in cut:
            continue
        work, attention = scene.work[j], scene.attention[j]
        best, best_gain, best_room = -1, -2.0, -1e30
        for c, pool in enumerate(pools):
            k = least[c]
            room, gain = rooms[c], 0.0
            if pool.anchors:
                lack = pool.wait * pool.speeds[k] - pool.own[k]
                if lack > 0.0 and scene.overlap:
                    gain = lack if lack < attention else attention
                    room += gain
                spot = pool.speeds[k] * target_s - pool.load[k]
                if spot < room:
                    room = spot
            if scene.tight and pool.tokens + scene.tokens[j] > pool.cap:
                room, gain = room - target_s, 0.0
            if room + slack < work:
                gain = 0.0
                if room + spare < work:
                    if spilling:
                        continue
                    gain = -1.0
            if gain > best_gain + 1e-3 * abs(best_gain) or (gain >= best_gain - 1e-3 * abs(best_gain) and room > best_room):
                best, best_gain, best_room = c, gain, room
        if best < 0:
            spill.append(j)
            stands_out = True
            continue
        pool, k = pools[best], least[best]
        if best_gain < 0.0:
            stands_out, best_gain = True, 0.0
        pool.put(scene, j, k)
        rooms[best] += best_gain - work
        owner[j] = pool.ranks[k]
        if pool.anchors:
            loads = [load / s for load, s in zip(pool.load, pool.speeds, strict=True)]
            least[best] = loads.index(min(loads))
    for j in spill:
        pools = _spill(scene, pools, j, target_s)
    return pools, stands_out


def _spill(scene: Scene, pools: list[Pool], j: int, target_s: float) -> list[Pool]:
    """Cuts a sequence that fits nowhere whole over the pools with the most room; they become one."""
    room = [(pool.work + pool.speed * pool.wait * 0.5 - pool.speed * target_s, c) for c, pool in enumerate(pools)]
    room.sort()
    chosen, left = [], scene.work[j]
    for short, c in room:
        chosen.append(c)
        left += short
        if left <= SLACK * target_s and sum([len(pools[x].ranks) for x in chosen]) > 1:
            break
    chosen.sort()
    merged = merge(scene, [pools[c] for c in chosen], [j])
    return [merged] + [pool for c, pool in enumerate(pools) if c not in chosen]


def place_short(scene: Scene, pools: list[Pool], first: int, owner: dict[int, int]) -> None:
    """All sequences from `first` on, each to the pool with the lowest level, there to the rank with the least load."""
    heap = [(pool_time(scene, pool), c) for c, pool in enumerate(pools)]
    heapify(heap)
    inner = [[(load / s, k) for k, (load, s) in enumerate(zip(p.load, p.speeds, strict=True))] for p in pools]
    for h in inner:
        heapify(h)
    for j in range(first, len(scene.work)):
        work = scene.work[j]
        full = []
        while scene.tight and len(heap) > 1 and pools[heap[0][1]].tokens + scene.tokens[j] > pools[heap[0][1]].cap:
            full.append(heappop(heap))
        height, c = heap[0]
        pool = pools[c]
        spot, k = inner[c][0]
        owner[j] = pool.ranks[k]
        heapreplace(inner[c], (spot + work / pool.speeds[k], k))
        pool.put(scene, j, k)
        heapreplace(heap, (height + work / pool.speed, c))
        for entry in full:
            heappush(heap, entry)
