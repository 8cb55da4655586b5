"""Policy `even`: the paper's form of the plan, a moldable degree per sequence with even shards and even heads.

Anchors get the degree among the divisors of the heads that ends first on the least loaded run of ranks; fillers follow
whole. Groups of different sequences overlap freely. The difference to `zellige` is what uneven cuts are worth.
"""

from __future__ import annotations

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Round
from zellige_ray.placement.policies.cp import place_even
from zellige_ray.placement.stages.pool import even_wait
from zellige_ray.placement.stages.scene import Scene, make_scene
from zellige_ray.placement.timeline import time_round

ROOM = (1.0, 1.05, 1.15, 1.3)  # of the ideal time: what a rank may be loaded to before a sequence gets more ranks


def place_even_degrees(batch: Batch, cluster: Cluster, cost: CostModel, argument: str = "") -> Round:
    """The best of a few targets by the timeline; ties go to the lower target."""
    if argument:
        raise PlanError(f"policy even takes no argument, got {argument!r}")
    scene = make_scene(batch, cluster, cost)
    degrees = [g for g in range(1, cluster.world_size + 1) if scene.quanta % g == 0]
    rounds = [place_even(batch, cost.model, _place(scene, degrees, room * scene.target_s)) for room in ROOM]
    return min(rounds, key=lambda r: round(time_round(r, cluster, cost).layer_s * 1e12))


def _place(scene: Scene, degrees: list[int], target_s: float) -> list[tuple[int, ...]]:
    """Longest first, on ranks of a node: the least degree that fits the target, else the one that ends first."""
    load = [0.0] * scene.world_size
    order = [r for ranks in scene.nodes for r in ranks]
    out = []
    for tokens, work in zip(scene.tokens, scene.work, strict=True):
        best: tuple[bool, float, tuple[int, ...], float] | None = None
        for g in degrees:
            if g > tokens:
                break
            run, share = _run(scene, load, order, g), work / g
            nodes = len({scene.node_of[r] for r in run})
            cost = share + (even_wait(scene, tokens, g, nodes) if g > 1 else 0.0)
            end = max([load[r] + cost / scene.speed[r] for r in run])
            if best is None or (end > target_s, end) < best[:2]:
                best = (end > target_s, end, run, cost)
            if end <= target_s:
                break
        assert best is not None
        for r in best[2]:
            load[r] += best[3] / scene.speed[r]
        out.append(best[2])
    return out


def _run(scene: Scene, load: list[float], order: list[int], g: int) -> tuple[int, ...]:
    """The least loaded g ranks of one node, or the least loaded run over nodes where no node has as many."""
    if g == 1:
        return (min(order, key=lambda r: (load[r], r)),)
    inside = [sorted(ranks, key=lambda r: (load[r], r))[:g] for ranks in scene.nodes if len(ranks) >= g]
    if inside:
        return tuple(sorted(min(inside, key=lambda ranks: max([load[r] for r in ranks]))))
    starts = range(0, len(order) - g + 1)
    start = min(starts, key=lambda a: (max([load[r] for r in order[a : a + g]]), a))
    return tuple(sorted(order[start : start + g]))
