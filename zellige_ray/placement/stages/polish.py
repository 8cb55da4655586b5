"""Polish: fillers move and swap between pools, or one more sequence is cut, while the slowest pool gets faster.

Bounded by a number of steps, never by time, so that the same batch gives the same plan on any machine.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import nsmallest

from zellige_ray.placement.stages.fluid import pool_time
from zellige_ray.placement.stages.pool import Pool, merge
from zellige_ray.placement.stages.scene import Scene

GOOD = 0.002  # of the mean: pools this close to it need no polish
PARTNERS = 2
CUTS = 2  # of the longest fillers of a pool are tried as anchors
WIDEST = 24  # fillers of a pool that are looked at, longest first

Item = tuple[float, int, int]  # work, sequence, position of its rank in the pool


def polish(scene: Scene, pools: list[Pool], owner: dict[int, int], steps: int) -> list[Pool]:
    """Takes up to `steps` steps; changes the pools and owner, returns the pools."""
    if len(pools) == 1:
        return pools
    times = [pool_time(scene, pool) for pool in pools]
    total = sum([pool.speed for pool in pools])
    if max(times) <= sum([t * p.speed for t, p in zip(times, pools, strict=True)]) / total * (1 + GOOD):
        return pools
    spot = {r: (c, k) for c, pool in enumerate(pools) for k, r in enumerate(pool.ranks)}
    items: list[list[Item]] = [[] for _ in pools]
    for j, rank in owner.items():
        c, k = spot[rank]
        items[c].append((scene.work[j], j, k))
    for part in items:
        part.sort()
    for _ in range(steps):
        mean = sum([t * p.speed for t, p in zip(times, pools, strict=True)]) / total
        a = times.index(max(times))
        if times[a] <= mean * (1 + GOOD):
            break
        partners = nsmallest(PARTNERS, [(t, c) for c, t in enumerate(times) if c != a])
        if not any([_exchange(scene, pools, items, times, a, b) for _, b in partners]):
            cut = _cut(scene, pools, items, times, a, [b for _, b in partners])
            if cut is None:
                break
            j, b, merged = cut
            del owner[j]
            shift = {b: len(pools[a].ranks), a: 0}
            joined = sorted([(w, i, k + shift[c]) for c in shift for w, i, k in items[c] if i != j])
            keep = [c for c in range(len(pools)) if c not in shift]
            pools = [pools[c] for c in keep] + [merged]
            items = [items[c] for c in keep] + [joined]
            times = [times[c] for c in keep] + [pool_time(scene, merged)]
    for pool, part in zip(pools, items, strict=True):
        for _, j, k in part:
            owner[j] = pool.ranks[k]
    return pools


def _exchange(scene: Scene, pools: list[Pool], items: list[list[Item]], times: list[float], a: int, b: int) -> bool:
    """Moves or swaps the fillers that bring pools a (slow) and b closest together; False when that does not help."""
    high, low = pools[a], pools[b]
    want = (times[a] - times[b]) / (1 / high.speed + 1 / low.speed)
    theirs = items[b][-WIDEST:]
    best: tuple[float, Item, Item | None] | None = None
    for mine in items[a][-WIDEST:]:
        off = abs(mine[0] - want)
        if mine[0] < 2 * want and (best is None or off < best[0]):
            best = (off, mine, None)
        at = bisect_left(theirs, (mine[0] - want,))
        for other in theirs[max(0, at - 1) : at + 1]:
            off = abs(mine[0] - other[0] - want)
            if 0 < mine[0] - other[0] < 2 * want and (best is None or off < best[0]):
                best = (off, mine, other)
    if best is None:
        return False
    _, mine, swap = best
    loads = [load / s for load, s in zip(low.load, low.speeds, strict=True)]
    spot = swap[2] if swap else loads.index(min(loads))
    high.take(scene, mine[1], mine[2])
    low.put(scene, mine[1], spot)
    if swap:
        low.take(scene, swap[1], swap[2])
        high.put(scene, swap[1], mine[2])
    after = (pool_time(scene, high), pool_time(scene, low))
    if max(after) < times[a] * (1 - 1e-6):
        times[a], times[b] = after
        items[a].remove(mine)
        insort(items[b], (mine[0], mine[1], spot))
        if swap:
            items[b].remove(swap)
            insort(items[a], (swap[0], swap[1], mine[2]))
        return True
    low.take(scene, mine[1], spot)
    high.put(scene, mine[1], mine[2])
    if swap:
        low.put(scene, swap[1], swap[2])
        high.take(scene, swap[1], mine[2])
    return False


def _cut(
    scene: Scene, pools: list[Pool], items: list[list[Item]], times: list[float], a: int, partners: list[int]
) -> tuple[int, int, Pool] | None:
    """Cuts a long filler of pool a over it, or over it and a partner in its node, where that is faster."""
    node = scene.node_of[pools[a].ranks[0]]
    best: tuple[float, int, int, Pool] | None = None
    for b in [*([a] if pools[a].anchors else []), *partners]:
        if scene.node_of[pools[b].ranks[0]] != node or len({scene.node_of[r] for r in pools[b].ranks}) > 1:
            continue
        for _, j, k in items[a][-CUTS:]:
            pools[a].take(scene, j, k)
            merged = merge(scene, [pools[a], pools[b]] if b != a else [pools[a]], [j])
            pools[a].put(scene, j, k)
            time = pool_time(scene, merged)
            if time < times[a] * (1 - 1e-3) and (best is None or time < best[0]):
                best = (time, j, b, merged)
    return None if best is None else best[1:]
