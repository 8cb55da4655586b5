"""Mutations: every way to spoil a plan is caught, with the sequence named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from zellige_ray.errors import PlanError
from zellige_ray.placement import Plan, Sequence, make_plan, plan_from_json, plan_to_json, validate
from zellige_ray.placement.workloads import draw_batch


@pytest.fixture(scope="module")
def good(flux16):
    batch = draw_batch("knap-joint", 16, 0)
    return batch, make_plan(batch, flux16.hardware.cluster(), flux16)


def spoiled(plan: Plan, **arrays) -> Plan:
    return Plan(plan.world_size, (dataclasses.replace(plan.rounds[0], **arrays), *plan.rounds[1:]), plan.policy)


def cut_row(rows: np.ndarray) -> int:
    """The first row of a sequence that has several."""
    counts = np.bincount(rows[:, 0])
    return int(np.flatnonzero(counts[rows[:, 0]] > 1)[0])


def shift_shard(r):
    rows = r.shards_K4.copy()
    rows[cut_row(rows), 3] -= 1
    return {"shards_K4": rows}


def tile_rank(r):
    rows = r.tiles_M6.copy()
    rows[3, 1] = 99
    return {"tiles_M6": rows}


def wider_tile(r):
    rows = r.tiles_M6.copy()
    rows[cut_row(rows), 3] += 1
    return {"tiles_M6": rows}


def fewer_queries(r):
    rows = r.tiles_M6.copy()
    rows[cut_row(rows), 5] -= 1
    return {"tiles_M6": rows}


MUTATIONS = {
    "drop a tile": lambda r: {"tiles_M6": np.delete(r.tiles_M6, cut_row(r.tiles_M6), axis=0)},
    "drop a shard": lambda r: {"shards_K4": np.delete(r.shards_K4, cut_row(r.shards_K4), axis=0)},
    "double a tile": lambda r: {"tiles_M6": np.insert(r.tiles_M6, 0, r.tiles_M6[0], axis=0)},
    "shift a shard": shift_shard,
    "a rank outside the world": tile_rank,
    "a tile one head wider": wider_tile,
    "a tile one query short": fewer_queries,
    "another length": lambda r: {"tokens_S": r.tokens_S + (np.arange(len(r.ids)) == 0)},
    "another id": lambda r: {"ids": ("other", *r.ids[1:])},
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_spoiled_plan_is_caught(good, flux16, name):
    batch, plan = good
    cluster = flux16.hardware.cluster()
    validate(plan, batch, flux16.model, cluster)
    bad = spoiled(plan, **MUTATIONS[name](plan.rounds[0]))
    with pytest.raises(PlanError):
        validate(bad, batch, flux16.model, cluster)


def test_a_swapped_rank_in_memory_or_in_a_file_is_caught_by_the_hash(good, flux16):
    batch, plan = good
    value = plan_to_json(plan)
    tile = value["rounds"][0]["sequences"][0]["tiles"][0]
    tile["rank"] = (tile["rank"] + 1) % 16
    with pytest.raises(PlanError, match="it was edited"):
        plan_from_json(value)
    changed = spoiled(plan)
    assert changed == plan
    changed.rounds[0].tiles_M6.setflags(write=True)
    changed.rounds[0].tiles_M6[0, 1] += 1
    try:
        with pytest.raises(PlanError, match="was changed after it was made"):
            validate(changed, batch, flux16.model, flux16.hardware.cluster())
    finally:
        changed.rounds[0].tiles_M6[0, 1] -= 1


def test_arrays_of_a_plan_are_read_only(good):
    with pytest.raises(ValueError, match="read-only"):
        good[1].rounds[0].shards_K4[0, 1] = 0


def test_a_plan_of_another_world_or_batch_is_refused(good, flux16, flux32):
    batch, plan = good
    with pytest.raises(PlanError, match="plan is for 16 ranks, the cluster has 32"):
        validate(plan, batch, flux16.model, flux32.hardware.cluster())
    with pytest.raises(PlanError, match="plan and batch differ"):
        validate(plan, batch[1:], flux16.model, flux16.hardware.cluster())
    with pytest.raises(PlanError, match="plan and batch differ"):
        validate(plan, (*batch[1:], Sequence(batch[0].id, 5)), flux16.model, flux16.hardware.cluster())
