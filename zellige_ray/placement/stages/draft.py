"""Drafts: complete placements in fluid form, made stage by stage and polished."""

from __future__ import annotations

from dataclasses import dataclass

from zellige_ray.placement.stages.anchors import layouts
from zellige_ray.placement.stages.fillers import place_long, place_short
from zellige_ray.placement.stages.fluid import level, pool_time
from zellige_ray.placement.stages.nodes import Site, make_sites
from zellige_ray.placement.stages.polish import polish
from zellige_ray.placement.stages.pool import Pool
from zellige_ray.placement.stages.scene import Scene

LONG_PER_RANK = 3  # sequences that are placed one by one with care; the rest is levelled
WIDTHS = 4  # layouts with pools of their own that a site tries
TRIES = 500  # over the number of long sequences: how many layouts each site tries in all
STEPS = 24  # of polish
GOOD = 1.003  # of what can be expected: close enough to look no further
REACH = 1.3  # of the time so far: the longest sequence with which whole placement is tried


@dataclass(slots=True)
class Draft:
    """Pools with their fillers, the rank of each whole sequence, and the fluid time of the slowest pool. Seconds."""

    pools: list[Pool]
    owner: dict[int, int]
    time_s: float


def draft(scene: Scene) -> Draft:
    """Sequences to nodes, anchors to pools, fillers into what is left; the better node sets of a giant."""
    num_long = min(len(scene.work), LONG_PER_RANK * scene.world_size)
    short_work = sum(scene.work[num_long:])
    tries = max(2, min(10, TRIES // num_long))
    best: Draft | None = None
    for rank in range(2):
        sites = make_sites(scene, num_long, rank)
        if sites is None:
            break
        owner: dict[int, int] = {}
        pools: list[Pool] = []
        for site in sites:
            pools += _best_layout(scene, site, short_work, tries, owner)
        got = _finish(scene, pools, owner, num_long)
        if best is None or got.time_s < best.time_s:
            best = got
        if len(sites) == len(scene.nodes) and scene.work[0] <= max(site.work for site in sites):
            break
    assert best is not None
    return best


def draft_whole(scene: Scene, time_s: float) -> Draft | None:
    """Every sequence whole, longest first, then polished; None where the longest alone rules that out."""
    if time_s <= scene.target_s * GOOD or scene.work[0] / max(scene.speed) > time_s * REACH:
        return None
    pools = [Pool(scene, [r], []) for ranks in scene.nodes for r in ranks]
    return _finish(scene, pools, {}, 0)


def _finish(scene: Scene, pools: list[Pool], owner: dict[int, int], first: int) -> Draft:
    place_short(scene, pools, first, owner)
    pools = polish(scene, pools, owner, STEPS)
    return Draft(pools, owner, max([pool_time(scene, pool) for pool in pools]))


def _best_layout(scene: Scene, site: Site, short_work: float, tries: int, owner: dict[int, int]) -> list[Pool]:
    """The fastest of a site's layouts with its long fillers in place; short_work: what levelling may still add."""
    target, speed = scene.target_s, sum([scene.speed[r] for r in site.ranks])
    short = max(0.0, min(short_work, target * speed - site.work))
    best: tuple[float, list[Pool], dict[int, int]] | None = None
    for score, start in layouts(scene, site, target, WIDTHS):
        if best is not None and (best[0] <= target * score * GOOD or tries <= 0):
            break  # scores ascend: nothing better is to be expected
        for spilling in (False, True):
            mine: dict[int, int] = {}
            tries -= 1
            pools, stands_out = place_long(scene, site, [p.copy() for p in start], target * score, spilling, mine)
            time = _levelled(scene, pools, short)
            if best is None or time < best[0]:
                best = (time, pools, mine)
            if not stands_out or tries <= 0 or time <= target * score * GOOD:
                break
    assert best is not None
    owner.update(best[2])
    return best[1]


def _levelled(scene: Scene, pools: list[Pool], short: float) -> float:
    """Time of the slowest pool after short fillers have levelled the pools, each as far as its memory goes."""
    times = [pool_time(scene, pool) for pool in pools]
    top, active = max(times), list(range(len(pools)))
    while True:
        speeds = [pools[c].speed for c in active]
        height = level(speeds, [times[c] * s for c, s in zip(active, speeds, strict=True)], short)
        if not scene.tight:
            return max(top, height)
        most = [(pools[c].cap - pools[c].tokens) * scene.short_token_s for c in active]
        rest = [c for c, m in zip(active, most, strict=True) if (height - times[c]) * pools[c].speed <= m]
        if not rest or len(rest) == len(active):
            return max(top, height)
        short -= sum([max(0.0, m) for c, m in zip(active, most, strict=True) if c not in rest])
        active = rest
