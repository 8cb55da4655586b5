"""The joint reference: an optimal plan of even degrees for small instances, by OR-tools' CP-SAT, with its proven bound.

All sequences are decided together: a degree and the ranks of each. The cost model is the timeline's without overlap:
ranks that share a sequence wait for each other at both exchanges. Ranks must be equal and on one node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zellige_ray.errors import ConfigError, PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Round
from zellige_ray.placement.policies.cp import place_even
from zellige_ray.placement.timeline import time_round

UNITS = 200_000  # integer time units in the ideal time of a rank


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A solution. Units: seconds per layer. bound_s: no plan of even degrees is faster."""

    round: Round
    time_s: float
    bound_s: float

    @property
    def gap(self) -> float:
        return self.time_s / self.bound_s - 1


def solve_reference(
    batch: Batch, cluster: Cluster, cost: CostModel, limit_s: float = 60.0, gap: float = 0.01, workers: int = 2
) -> Reference:
    """Solves until the gap is proven or the time is up. Units: seconds.

    Raises ConfigError without OR-tools, PlanError for ranks that differ or lie on several nodes, or when no plan was
    found in time.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as fault:
        raise ConfigError("the joint reference needs OR-tools: pip install 'zellige-ray[reference]'") from fault
    if len(set(cluster.node_of_rank)) > 1 or len(set(cluster.speed)) > 1:
        raise PlanError("the joint reference is for equal ranks on one node")
    plain = CostModel(cost.hardware, cost.model, overlap=False)
    model, member, unit_s = _formulate(cp_model, batch, cluster, plain)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.relative_gap_limit = gap
    solver.parameters.num_workers = workers
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise PlanError(f"the joint reference found no plan of {len(batch)} sequences in {limit_s:g} s; raise limit_s")
    ranks_of = []
    for j in range(len(batch)):
        chosen = [
            (g, [r for r in range(cluster.world_size) if solver.value(member[j, g, r])])
            for g in _degrees(batch, cluster, cost, j)
        ]
        ranks_of.append(next(tuple(ranks) for g, ranks in chosen if len(ranks) == g))
    round_ = place_even(batch, cost.model, ranks_of)
    time_s = time_round(round_, cluster, plain).layer_s
    bound_s = min(time_s, solver.best_objective_bound * unit_s)
    return Reference(round_, time_s, bound_s)


def _degrees(batch: Batch, cluster: Cluster, cost: CostModel, j: int) -> list[int]:
    quanta = cost.model.heads // cost.model.head_group
    most = min(cluster.world_size, int(batch.tokens_S[j]))
    return [g for g in range(1, most + 1) if quanta % g == 0]


def _formulate(cp_model: Any, batch: Batch, cluster: Cluster, cost: CostModel) -> tuple[Any, dict[Any, Any], float]:
    """The CP-SAT model, its membership variables (sequence, degree, rank), and seconds per unit."""
    size, num = cluster.world_size, len(batch)
    ideal = float(batch.linear_S.sum() + batch.attention_S.sum()) / size
    unit_s = ideal / UNITS / cluster.speed[0]
    model = cp_model.CpModel()
    horizon = UNITS * size * 4
    phases = ("linear", "attention", "in", "out")
    level = {(p, r): model.new_int_var(0, horizon, f"{p}{r}") for p in phases for r in range(size)}
    load: dict[tuple[str, int], list[Any]] = {key: [] for key in level}
    member: dict[Any, Any] = {}
    meets: dict[tuple[int, int], list[Any]] = {}
    for j in range(num):
        degrees = _degrees(batch, cluster, cost, j)
        pick = {g: model.new_bool_var(f"x{j},{g}") for g in degrees}
        model.add_exactly_one(pick.values())
        for g in degrees:
            cells = [model.new_bool_var(f"z{j},{g},{r}") for r in range(size)]
            member |= {(j, g, r): cell for r, cell in enumerate(cells)}
            model.add(sum(cells) == g * pick[g])
            if j == 0:  # ranks are equal: the longest sequence takes the first ones
                for r in range(size):
                    model.add(cells[r] == (pick[g] if r < g else 0))
            parts = _parts(batch, cost, j, g)
            for phase, seconds in zip(phases, parts, strict=True):
                amount = round(seconds / unit_s)
                for r in range(size):
                    load[phase, r].append(amount * cells[r])
            if g > 1:
                for a in range(size):
                    for b in range(a + 1, size):
                        meets.setdefault((a, b), []).append((cells[a], cells[b]))
    peers: dict[int, list[Any]] = {r: [] for r in range(size)}
    for (a, b), pairs in meets.items():
        joined = model.new_bool_var(f"c{a},{b}")
        for one, other in pairs:
            model.add_bool_or([one.negated(), other.negated(), joined])
        for phase in phases:
            model.add(level[phase, a] == level[phase, b]).only_enforce_if(joined)
        peers[a].append(joined)
        peers[b].append(joined)
    latency = round(cost.latency_s / unit_s)
    makespan = model.new_int_var(UNITS, horizon, "makespan")
    for r in range(size):
        for phase in phases:
            extra = latency * sum(peers[r]) if phase in ("in", "out") else 0
            model.add(level[phase, r] >= sum(load[phase, r]) + extra)
        model.add(makespan >= sum(level[phase, r] for phase in phases))
    model.minimize(makespan)
    return model, member, unit_s


def _parts(batch: Batch, cost: CostModel, j: int, g: int) -> tuple[float, float, float, float]:
    """Linear, attention, exchange in and out of one of g ranks that share a sequence evenly. Seconds at speed 1."""
    quanta = cost.model.heads // cost.model.head_group
    rows = float(batch.tokens_S[j]) / g * (1 - 1 / g) * quanta
    row_s = cost.row_bytes / cost.hardware.intra_node_bytes_per_s
    q, kv = rows * cost.model.head_group, 2 * rows
    return float(batch.linear_S[j]) / g, float(batch.attention_S[j]) / g, (q + kv) * row_s, q * row_s
