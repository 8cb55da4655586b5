"""Stage two: whole sequences into what anchors leave, longest first; one that fits nowhere is cut after all."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from zellige_ray.placement.stages.fluid import pool_time
from zellige_ray.placement.stages.nodes import Site
from zellige_ray.placement.stages.pool import Pool, merge
from zellige_ray.placement.stages.scene import Scene

SPARE = 0.044  # of the target: what stands out further is cut
EVEN = 1.6  # of a rank's share of its pool's room: what fillers that hide an exchange may take
MOST_SPILLS = 3  # with more than this the whole site becomes one pool


def place_long(
    scene: Scene, site: Site, pools: list[Pool], target_s: float, spilling: bool, owner: dict[int, int]
) -> tuple[list[Pool], bool]:
    """The site's long fillers, each to the rank with most room, first where its attention hides an exchange.

    Fills owner (sequence -> rank). Returns the pools, merged where a sequence was cut over several, and whether one
    stands out: found no room, whether it was cut (spilling) or not.
    """
    cut = {j for pool in pools for j in pool.anchors}
    hungry = [c for c, pool in enumerate(pools) if pool.anchors] if scene.overlap else []
    rooms = [pool.speed * (target_s - pool.wait) - pool.work for pool in pools]
    least = [0] * len(pools)
    allowed = [EVEN * room / pool.speed for room, pool in zip(rooms, pools, strict=True)]
    heap = [(-_room(pool, rooms[c], 0, target_s), c) for c, pool in enumerate(pools)]
    heapify(heap)
    spare, spill, stands_out = SPARE * target_s, [], False
    works, attentions, tight = scene.work, scene.attention, scene.tight
    for j in site.members:
        if j in cut:
            continue
        work, best, gain = works[j], -1, 0.0
        for c in hungry:
            pool, k = pools[c], least[c]
            lack = pool.wait * pool.speeds[k] - pool.own[k]
            win = min(lack, attentions[j])
            fits = win > gain * 1.001 and rooms[c] + win >= work and pool.load[k] + work <= allowed[c] * pool.speeds[k]
            if fits and not (tight and not pool.fits(scene.tokens[j], k)):
                best, gain = c, win
        if best < 0:
            full = []
            best = heap[0][1]
            while tight and len(heap) > 1 and not pools[best].fits(scene.tokens[j], least[best]):
                full.append(heappop(heap))
                best = heap[0][1]
            room = -heap[0][0]
            for entry in full:
                heappush(heap, entry)
            if room + spare < work:
                stands_out = True
                if spilling:
                    spill.append(j)
                    continue
        pool, k = pools[best], least[best]
        pool.put(scene, j, k)
        rooms[best] += gain - work
        owner[j] = pool.ranks[k]
        if pool.anchors:
            loads = pool.load if pool.even else [load / s for load, s in zip(pool.load, pool.speeds, strict=True)]
            least[best] = loads.index(min(loads))
            if gain > 0.0 and pool.own[least[best]] >= pool.wait * pool.speeds[least[best]]:
                hungry.remove(best)
        entry = (-_room(pool, rooms[best], least[best], target_s), best)
        if heap[0][1] == best:
            heapreplace(heap, entry)
        else:
            heap = [entry if c == best else (room, c) for room, c in heap]
            heapify(heap)
    return _spill(scene, pools, spill, target_s), stands_out


def _room(pool: Pool, room: float, k: int, target_s: float) -> float:
    spot = pool.speeds[k] * target_s - pool.load[k]
    return spot if spot < room else room


def _spill(scene: Scene, pools: list[Pool], spill: list[int], target_s: float) -> list[Pool]:
    """Cuts each sequence that fits nowhere whole over the pools with the most room; they become one."""
    if len(spill) > MOST_SPILLS:
        return [merge(scene, pools, spill)]
    for j in spill:
        room = sorted([(p.work + p.speed * (p.wait * 0.5 - target_s), c) for c, p in enumerate(pools)])
        chosen: list[int] = []
        left = scene.work[j]
        for short, c in room:
            chosen.append(c)
            left += short
            if left <= 0.004 * target_s and sum([len(pools[x].ranks) for x in chosen]) > 1:
                break
        chosen.sort()
        merged = merge(scene, [pools[c] for c in chosen], [j])
        pools = [merged] + [pool for c, pool in enumerate(pools) if c not in chosen]
    return pools


def place_short(scene: Scene, pools: list[Pool], first: int, owner: dict[int, int]) -> None:
    """All sequences from `first` on, each to the pool with the lowest level, there to the rank with the least load."""
    heap = [(pool_time(scene, pool), c) for c, pool in enumerate(pools)]
    heapify(heap)
    inner = [[(load / s, k) for k, (load, s) in enumerate(zip(p.load, p.speeds, strict=True))] for p in pools]
    for h in inner:
        heapify(h)
    parked: list[tuple[float, float, int]] = []  # full pools: (minus the tokens that still fit, level, pool)
    tight, tokens, works = scene.tight, scene.tokens, scene.work
    for j in range(first, len(works)):
        work = works[j]
        if tight:
            while parked and -parked[0][0] >= tokens[j]:
                heappush(heap, heappop(parked)[1:])
            while len(heap) > 1 and not pools[heap[0][1]].fits(tokens[j], inner[heap[0][1]][0][1]):
                height, c = heappop(heap)
                heappush(parked, (-pools[c].left(inner[c][0][1]), height, c))
        height, c = heap[0]
        pool = pools[c]
        if len(pool.ranks) > 1:
            spot, k = inner[c][0]
            heapreplace(inner[c], (spot + work / pool.speeds[k], k))
        else:
            k = 0
        owner[j] = pool.ranks[k]
        pool.put(scene, j, k)
        heapreplace(heap, (height + work / pool.speed, c))
