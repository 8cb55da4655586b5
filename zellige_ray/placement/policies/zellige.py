"""Policy `zellige`: anchors into pools, fillers into what is left, anchors poured; the best of a few thresholds."""

from __future__ import annotations

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.pack import pack_round
from zellige_ray.placement.plan import Round
from zellige_ray.placement.stages.anchors import form_pools
from zellige_ray.placement.stages.fillers import place_fillers
from zellige_ray.placement.stages.pour import pour
from zellige_ray.placement.stages.scene import Scene, make_scene
from zellige_ray.placement.timeline import time_round

THRESHOLDS = (1.0, 0.6)
WIDENINGS = (0.0, 0.5, 1.0)
SNAPS = (0.0, 0.25, 0.5)


def place_zellige(batch: Batch, cluster: Cluster, cost: CostModel, argument: str = "") -> Round:
    """The best candidate by the timeline; ties go to the earlier one."""
    if argument:
        raise PlanError(f"policy zellige takes no argument, got {argument!r}")
    scene = make_scene(batch, cluster, cost)
    best: tuple[int, Round] | None = None
    for threshold in THRESHOLDS:
        for widen in WIDENINGS:
            round_ = _candidate(scene, batch, cost, threshold, widen)
            key = round(time_round(round_, cluster, cost).layer_s * 1e12)
            if best is None or key < best[0]:
                best = (key, round_)
    assert best is not None
    return best[1]


def _candidate(scene: Scene, batch: Batch, cost: CostModel, threshold: float, widen: float) -> Round:
    pools = form_pools(scene, threshold, widen)
    owner = place_fillers(scene, pools)
    shards, tiles = [], []
    for pool in pools:
        if pool.anchors:
            got = min((pour(scene, pool, snap) for snap in SNAPS), key=lambda p: p.time_s)
            shards += got.shards
            tiles += got.tiles
    return pack_round(batch, cost.model.heads, np.array(owner, dtype=np.int64), shards, tiles)
