"""Policy `zellige`: anchors into pools, fillers into what is left, anchors poured; never worse than its portfolio."""

from __future__ import annotations

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.pack import pack_round
from zellige_ray.placement.plan import Round
from zellige_ray.placement.stages.draft import Draft, draft, draft_whole
from zellige_ray.placement.stages.portfolio import best_of_portfolio
from zellige_ray.placement.stages.pour import pour
from zellige_ray.placement.stages.scene import Scene, make_scene


def place_zellige(batch: Batch, cluster: Cluster, cost: CostModel, argument: str = "") -> Round:
    """The best draft, poured; ties go to the earlier one."""
    if argument:
        raise PlanError(f"policy zellige takes no argument, got {argument!r}")
    scene = make_scene(batch, cluster, cost)
    best = draft(scene)
    whole = draft_whole(scene, best.time_s)
    if whole is not None and whole.time_s < best.time_s:
        best = whole
    round_, time_s = pour_draft(scene, batch, cost, best)
    return best_of_portfolio(scene, batch, cluster, cost, round_, time_s)


def pour_draft(scene: Scene, batch: Batch, cost: CostModel, plan: Draft) -> tuple[Round, float]:
    """The round of a draft, fillers whole and anchors poured, and its time in seconds per layer."""
    shards, tiles, time_s = [], [], 0.0
    for pool in plan.pools:
        if not pool.anchors:
            time_s = max(time_s, pool.load[0] / pool.speeds[0])
        else:
            got = pour(scene, pool)
            time_s = max(time_s, got.time_s)
            shards += got.shards
            tiles += got.tiles
    owner = np.full(len(batch), -1, dtype=np.int64)
    owner[list(plan.owner)] = list(plan.owner.values())
    return pack_round(batch, cost.model.heads, owner, shards, tiles), time_s
