"""Policy `zellige`: anchors into pools, fillers into what is left, anchors poured; the best of a few thresholds."""

from __future__ import annotations

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.pack import pack_round
from zellige_ray.placement.plan import Round
from zellige_ray.placement.stages.anchors import layouts
from zellige_ray.placement.stages.fillers import place_long, place_short
from zellige_ray.placement.stages.fluid import level, pool_time
from zellige_ray.placement.stages.nodes import Site, make_sites
from zellige_ray.placement.stages.polish import polish
from zellige_ray.placement.stages.pool import Pool
from zellige_ray.placement.stages.pour import pour
from zellige_ray.placement.stages.scene import Scene, make_scene

LONG_PER_RANK = 5
LIMIT = 4
STEPS = 40
GOOD = 1.002
DEBUG = False


def place_zellige(batch: Batch, cluster: Cluster, cost: CostModel, argument: str = "") -> Round:
    """The best candidate by the timeline; ties go to the earlier one."""
    if argument:
        raise PlanError(f"policy zellige takes no argument, got {argument!r}")
    scene = make_scene(batch, cluster, cost)
    num_long = min(len(batch), LONG_PER_RANK * cluster.world_size)
    short_work = sum(scene.work[num_long:])
    best = None
    for rank in range(2):
        sites = make_sites(scene, num_long, rank)
        if sites is None:
            break
        owner: dict[int, int] = {}
        pools: list[Pool] = []
        for site in sites:
            pools += _best_layout(scene, site, short_work, owner)
        place_short(scene, pools, num_long, owner)
        pools = polish(scene, pools, owner, STEPS)
        time = max([pool_time(scene, pool) for pool in pools])
        if best is None or time < best[0]:
            best = (time, pools, owner)
        if len(sites) == len(scene.nodes):
            break
    assert best is not None
    _, pools, owner = best
    shards, tiles = [], []
    for pool in pools:
        if pool.anchors:
            got = pour(scene, pool)
            shards += got.shards
            tiles += got.tiles
    whole = np.array([owner.get(j, -1) for j in range(len(batch))], dtype=np.int64)
    return pack_round(batch, cost.model.heads, whole, shards, tiles)


def _best_layout(scene: Scene, site: Site, short_work: float, owner: dict[int, int]) -> list[Pool]:
    speed = sum([scene.speed[r] for r in site.ranks])
    short = max(0.0, min(short_work, scene.target_s * speed - site.work))
    best = None
    for score, start in layouts(scene, site, scene.target_s, LIMIT):
        for spilling in (False, True):
            mine: dict[int, int] = {}
            begin = [p.copy() for p in start]
            pools, stands_out = place_long(scene, site, begin, scene.target_s * score, spilling, mine)
            times = [pool_time(scene, pool) for pool in pools]
            speeds = [pool.speed for pool in pools]
            time = max(max(times), level(speeds, [t * s for t, s in zip(times, speeds, strict=True)], short))
            if DEBUG: print(site.nodes, "%.3f"%score, [(len(p.ranks),p.anchors) for p in pools if p.anchors], spilling, "%.3f"%(time/scene.target_s), "%.3f"%(site.work/speed/scene.target_s))
            if best is None or time < best[0]:
                best = (time, pools, mine)
            if not stands_out or time <= scene.target_s * GOOD:
                break
        if best[0] <= scene.target_s * GOOD:
            break
    assert best is not None
    owner.update(best[2])
    return best[1]
