"""The portfolio: disjoint even groups (homogeneous and mixed bags, cp), tried where they could beat the plan so far.

Groups that cut every sequence they hold hide no exchange, so a spec's time has a floor in closed form: balance, plus
the exchange of what it must cut. Where no floor is below the plan's time, no spec can win, which is the usual case.
"""

from __future__ import annotations

import numpy as np

from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Round
from zellige_ray.placement.policies.bags import Spec, all_specs, place_spec
from zellige_ray.placement.stages.scene import Scene
from zellige_ray.placement.timeline import peak_bytes, time_round

WORK = 1500  # sequences placed in all while trying mixed specs
MARGIN = 0.998  # a floor must be below this share of the plan's time to be tried
Best = tuple[float, Round]


def best_of_portfolio(
    scene: Scene, batch: Batch, cluster: Cluster, cost: CostModel, plan: Round, time_s: float
) -> Round:
    """The plan, or a faster one of the portfolio. time_s: of the plan, seconds per layer, as the stages see it."""
    size = scene.world_size
    if size == 1 or _any_floor(scene, time_s) >= MARGIN * time_s:
        return plan
    even = [((g, size // g),) for g in range(2, size + 1) if size % g == 0 and (g == size or scene.quanta % g == 0)]
    even = [spec for spec in even if _floor(scene, spec, time_s) < MARGIN * time_s]
    mixed: list[Spec] = []
    if len(batch) * 2 <= WORK:
        floors = [(_floor(scene, s, time_s), s) for s in all_specs(size, scene.quanta) if len(s) > 1]
        mixed = [spec for floor, spec in sorted(floors) if floor < MARGIN * time_s][: WORK // len(batch)]
    if not even and not mixed:
        return plan
    best = (time_round(plan, cluster, cost).layer_s, plan)
    for spec in even + mixed:
        if _floor(scene, spec, best[0]) < MARGIN * best[0]:
            best = _better(best, place_spec(batch, cluster, cost, spec), cluster, cost)
    return best[1]


def _better(best: Best, other: Round, cluster: Cluster, cost: CostModel) -> Best:
    time = time_round(other, cluster, cost)
    peak = peak_bytes(time, cluster.world_size, cost)
    fits = bool((peak <= np.array(cluster.memory_bytes)).all())
    return (time.layer_s, other) if fits and time.layer_s < best[0] * (1 - 1e-6) else best


def _cut_rows(scene: Scene, time_s: float, degree: int) -> float:
    """Exchange of the sequences that are too long for one rank, cut evenly, over all ranks. Seconds."""
    top = max(scene.speed) * time_s
    rows = 0.0
    for work, tokens in zip(scene.work, scene.tokens, strict=True):
        if work <= top:
            break
        width = max(degree, -(-work // top))
        rows += tokens * (1 - 1 / width)
    return (2 + 2 * scene.kv_share) * scene.quanta * rows * scene.row_s[0] / scene.world_size


def _any_floor(scene: Scene, time_s: float) -> float:
    """Floor of the time of any spec that would beat time_s."""
    return scene.target_s + _cut_rows(scene, time_s, 2)


def _floor(scene: Scene, spec: Spec, time_s: float) -> float:
    """Floor of the time of one spec, as far as it is to beat time_s."""
    least, most = spec[0][0], spec[-1][0]
    compute = max(scene.target_s, scene.work[0] / most / max(scene.speed))
    if least == 1:
        return compute + _cut_rows(scene, time_s, spec[min(1, len(spec) - 1)][0])
    rows = sum(scene.tokens) * (1 - 1 / least)
    return compute + (2 + 2 * scene.kv_share) * scene.quanta * rows * scene.row_s[0] / scene.world_size
