"""Streams: policies compared over many batches, with the figures that decide between them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch, make_batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Plan
from zellige_ray.placement.planner import plan_batch
from zellige_ray.placement.policies import get_policy
from zellige_ray.placement.policies.bags import all_specs, place_spec, spec_text
from zellige_ray.placement.sequence import Sequence
from zellige_ray.placement.timeline import time_round

BEST_STATIC = "bags:best-static"


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """What a policy did over a stream. Units: seconds, bytes, milliseconds.

    policy: as asked for; resolved: what ran (a spec for `bags:best-static`). step_s: mean. gap: total over total bound,
    less 1. idle_share, exchange_share: of all rank seconds. moved_bytes: mean per step. peak_bytes: most of any rank.
    failed: why the policy can't place a batch of the stream; all else is 0 then.
    """

    policy: str
    resolved: str
    step_s: float = 0.0
    lower_bound_s: float = 0.0
    gap: float = 0.0
    idle_share: float = 0.0
    exchange_share: float = 0.0
    moved_bytes: float = 0.0
    peak_bytes: int = 0
    rounds: float = 0.0
    plan_median_ms: float = 0.0
    plan_p99_ms: float = 0.0
    failed: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    batches: Iterable[tuple[Sequence, ...]],
    cluster: Cluster,
    cost: CostModel,
    policies: Iterable[str],
    clock: Callable[[], float] = time.perf_counter,
) -> list[PolicyFigures]:
    """Figures of each policy over the same batches. Raises PlanError for bad batches and unknown policies."""
    checked = [(rows, make_batch(rows, cost)) for rows in batches]
    names = list(policies)
    for name in names:
        if name != BEST_STATIC:
            get_policy(name)
    out = []
    for name in names:
        resolved = f"bags:{best_static(checked, cluster, cost)}" if name == BEST_STATIC else name
        try:
            out.append(_figures(name, resolved, [rows for rows, _ in checked], cluster, cost, clock))
        except PlanError as fault:
            out.append(PolicyFigures(name, resolved, failed=str(fault)))
    return out


def best_static(checked: list[tuple[tuple[Sequence, ...], Batch]], cluster: Cluster, cost: CostModel) -> str:
    """The one bag spec with the least time over the stream, as a system with static groups would run."""
    best = (float("inf"), "")
    for spec in all_specs(cluster.world_size, cost.model.heads):
        total = 0.0
        for _, batch in checked:
            total += time_round(place_spec(batch, cluster, cost, spec), cluster, cost).layer_s
            if total >= best[0]:
                break
        best = min(best, (total, spec_text(spec)))
    return best[1]


def _figures(
    name: str,
    resolved: str,
    batches: list[tuple[Sequence, ...]],
    cluster: Cluster,
    cost: CostModel,
    clock: Callable[[], float],
) -> PolicyFigures:
    plans: list[Plan] = []
    took = []
    for rows in batches:
        start = clock()
        plans.append(plan_batch(make_batch(rows, cost), cluster, cost, resolved))
        took.append((clock() - start) * 1e3)
    predicted = [plan.predicted for plan in plans if plan.predicted is not None]
    ranks = [x for p in predicted for x in p.ranks]
    step = sum(p.step_s for p in predicted)
    seconds = step * cluster.world_size
    moved = sum(time_round(r, cluster, cost).moved_rows for plan in plans for r in plan.rounds)
    return PolicyFigures(
        policy=name,
        resolved=resolved,
        step_s=step / len(plans),
        lower_bound_s=sum(p.lower_bound_s for p in predicted) / len(plans),
        gap=step / sum(p.lower_bound_s for p in predicted) - 1,
        idle_share=sum(x.idle_s for x in ranks) / seconds,
        exchange_share=sum(x.exchange_s for x in ranks) / seconds,
        moved_bytes=moved * cost.row_bytes * cost.model.layers / len(plans),
        peak_bytes=max(x.peak_bytes for x in ranks),
        rounds=sum(len(plan.rounds) for plan in plans) / len(plans),
        plan_median_ms=statistics.median(took),
        plan_p99_ms=float(np.percentile(took, 99)),
    )
