"""The portfolio: disjoint even groups (homogeneous and mixed bags, cp), tried where they could beat the plan so far.

Groups that cut every sequence they hold hide no exchange, so a spec's time has a floor in closed form: balance, plus
the exchange of what it must cut. Where no floor is below the plan's time, no spec can win, which is the usual case.
"""

from __future__ import annotations

from heapq import heapreplace

import numpy as np

from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Round
from zellige_ray.placement.policies.bags import Spec, all_specs, place_spec
from zellige_ray.placement.stages.pool import even_wait
from zellige_ray.placement.stages.scene import Scene
from zellige_ray.placement.timeline import time_round

WORK = 1500  # sequences placed in all while trying mixed specs
MARGIN = 0.998  # a floor must be below this share of the plan's time to be tried


def best_of_portfolio(
    scene: Scene, batch: Batch, cluster: Cluster, cost: CostModel, plan: Round, time_s: float
) -> Round:
    """The plan, or a faster one of the portfolio. time_s: of the plan, seconds per layer, as the stages see it."""
    size = scene.world_size
    if size == 1 or _any_floor(scene, time_s) >= MARGIN * time_s:
        return plan
    whole = {size, len(scene.nodes[0])}  # cp needs no heads that divide
    sizes = [g for g in range(2, size + 1) if size % g == 0 and (g in whole or scene.quanta % g == 0)]
    even: list[Spec] = [((g, size // g),) for g in sizes]
    even = [spec for spec in even if _floor(scene, spec, time_s) < MARGIN * time_s]
    mixed: list[Spec] = []
    if len(batch) * 2 <= WORK:
        floors = [(_floor(scene, s, time_s), s) for s in all_specs(size, scene.quanta) if len(s) > 1]
        mixed = [spec for floor, spec in sorted(floors) if floor < MARGIN * time_s][: WORK // len(batch)]
    if not even and not mixed:
        return plan
    best = time_s
    chosen: Spec | None = None
    for spec in even + mixed:
        if _floor(scene, spec, best) < MARGIN * best:
            time = _greedy_time(scene, spec, MARGIN * best)
            best, chosen = min((best, chosen), (time, spec), key=lambda x: x[0])
    if chosen is None:
        return plan
    other = place_spec(batch, cluster, cost, chosen)
    timed = time_round(other, cluster, cost)
    fits = bool((timed.peak_P <= np.array(cluster.memory_bytes)).all())
    return other if fits and timed.layer_s < time_round(plan, cluster, cost).layer_s else plan


def _greedy_time(scene: Scene, spec: Spec, enough: float) -> float:
    """The time of `place_spec` without its rows: even groups are as long as their load and exchange per rank. Seconds.

    Infinite as soon as it is not below enough.
    """
    size = sum([g * k for g, k in spec])
    copies, worst = scene.world_size // size, 0.0
    for copy in range(copies):
        mine = range(copy, len(scene.work), copies)
        share = sum([scene.work[j] for j in mine]) / size
        heaps, first = [], 0
        for g, k in spec:
            heaps.append((g, share * g, [(0.0, i) for i in range(first, first + k)]))
            first += k
        loads, tokens, sizes = [0.0] * first, [0] * first, [g for g, k in spec for _ in range(k)]
        for j in mine:
            work, n = scene.work[j], scene.tokens[j]
            able = [heap for g, most, heap in heaps if most >= work and n >= g] or [heaps[-1][2]]
            heap = able[0] if len(able) == 1 else min(able)
            fill, i = heap[0]
            heapreplace(heap, (fill + work / sizes[i], i))
            loads[i] += work
            tokens[i] += n
        at = copy * size
        for g, load, total in zip(sizes, loads, tokens, strict=True):
            nodes = len({scene.node_of[r] for r in range(at, at + g)})
            worst = max(worst, load / g + (even_wait(scene, total, g, nodes) if g > 1 else 0.0))
            at += g
        if worst >= enough:
            return float("inf")
    return worst


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
