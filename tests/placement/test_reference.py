"""The joint reference, and the planner's gap to it."""

from __future__ import annotations

import dataclasses

import pytest

from zellige_ray.errors import PlanError
from zellige_ray.placement import CostModel, Sequence, load_hardware, load_model, make_plan
from zellige_ray.placement.batch import make_batch
from zellige_ray.placement.timeline import time_round

pytest.importorskip("ortools")
from zellige_ray.placement.reference import solve_reference


def setting(size: int):
    hardware = dataclasses.replace(load_hardware("a800-16"), nodes=1, ranks_per_node=size)
    return hardware.cluster(), CostModel(hardware, load_model("flux"), overlap=False)


@pytest.mark.parametrize("lengths", [[30000, 9000, 8000, 2000, 500], [12000, 12000, 12000, 256, 256], [40000]])
def test_the_two_stage_plan_is_close_to_the_joint_optimum(lengths):
    cluster, cost = setting(4)
    batch = [Sequence(f"s{i}", n) for i, n in enumerate(lengths)]
    best = solve_reference(make_batch(batch, cost), cluster, cost, limit_s=20)
    assert best.gap <= 0.0101
    ours = sum(time_round(r, cluster, cost).layer_s for r in make_plan(batch, cluster, cost).rounds)
    assert ours <= best.time_s * 1.01


def test_the_reference_prices_its_plan_as_the_timeline_does():
    cluster, cost = setting(4)
    batch = make_batch([Sequence(f"s{i}", n) for i, n in enumerate([20000, 6000, 6000, 300])], cost)
    best = solve_reference(batch, cluster, cost, limit_s=20)
    assert best.bound_s <= best.time_s == time_round(best.round, cluster, cost).layer_s


def test_ranks_that_differ_are_refused():
    cluster, cost = setting(2)
    uneven = dataclasses.replace(cluster, speed=(1.0, 0.5))
    with pytest.raises(PlanError, match="equal ranks"):
        solve_reference(make_batch([Sequence("a", 10)], cost), uneven, cost)
