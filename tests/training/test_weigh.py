"""Weighed memory models: predicted peaks against counted ones, on plans that no coefficient comes from."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training.weighing import Weighing, write_samples
from zellige_ray.config import ModelConfig, PlacementConfig
from zellige_ray.errors import PlanError
from zellige_ray.placement.memory import MemoryModel
from zellige_ray.training.weigh import state_bytes

MARGIN = PlacementConfig().memory_margin
POLICIES = ("dp", "cp", "bags:g2n1", "even", "zellige", "random", "random")  # of two ranks
OF_MORE = tuple(p for p in POLICIES if not p.startswith("bags"))


def errors(lab: Weighing, plans: int, least: int, most: int, seed: int) -> list[float]:
    """Of each plan, |predicted / counted - 1| on its fullest rank."""
    rng, work = np.random.default_rng(seed), []
    policies = POLICIES if len(lab.nodes) == 2 else OF_MORE
    for i in range(plans):
        picks = rng.choice(len(lab.samples), int(rng.integers(least, most)), replace=False)
        samples = [lab.samples[int(k)] for k in picks]
        work.append((lab.plan(policies[i % len(policies)], samples, rng), samples))
    return [abs(max(lab.predicted(w[0])) / n - 1) for w, n in zip(work, lab.counted(work), strict=True)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    cache = write_samples(tmp_path_factory.mktemp("weigh") / "cache", 24, 9, seed=4)
    return Weighing(cache, ModelConfig(name="dit", layers=1, heads=2, head_dim=24))


def test_predicted_peaks_of_held_out_plans_are_those_that_are_counted(tiny):
    found = errors(tiny, 14, 2, 7, seed=1)
    assert np.mean(found) <= 0.015, found
    assert max(found) <= 0.05, found


def test_the_model_survives_json_and_names_its_moments(tiny):
    assert MemoryModel.from_dict(tiny.memory.to_dict()) == tiny.memory
    names = [m.name for m in tiny.memory.moments]
    assert "optimizer" in names
    assert any(n.startswith("attention") for n in names)


@pytest.mark.parametrize("checkpointing", ["full", pytest.param("attention", marks=pytest.mark.slow)])
def test_checkpointing_modes_have_models_of_their_own(tmp_path, checkpointing):
    cache = write_samples(tmp_path / "cache", 12, 9, seed=5)
    lab = Weighing(cache, ModelConfig(name="dit", layers=2, heads=2, head_dim=24, checkpointing=checkpointing))
    assert np.mean(errors(lab, 7, 2, 7, seed=2)) <= 0.015


SHARDED = {
    "fsdp, 2 ranks": ("fsdp", (0, 0)),
    "fsdp, 3 ranks": ("fsdp", (0, 0, 0)),
    "hsdp, 2 nodes": ("hsdp", (0, 0, 1, 1)),
}


@pytest.mark.dist
@pytest.mark.parametrize(
    ("place", "checkpointing"),
    [
        pytest.param(place, c, marks=() if (place, c) == ("hsdp, 2 nodes", "full") else pytest.mark.slow)
        for place in SHARDED
        for c in ("none", "full")
    ],
)
def test_peaks_of_a_sharded_state_are_predicted_with_the_blocks_that_are_gathered(tiny, place, checkpointing):
    layout, nodes = SHARDED[place]
    model = ModelConfig(name="dit", layers=2, heads=2, head_dim=24, checkpointing=checkpointing)
    lab = Weighing(tiny.cache, model, layout, nodes)
    found = errors(lab, 6, 2, 7, seed=1)
    assert np.mean(found) <= 0.015, found


@pytest.mark.dist
@pytest.mark.slow
def test_a_rank_alone_on_its_node_is_predicted_with_the_whole_state(tiny):
    lab = Weighing(tiny.cache, ModelConfig(name="dit", layers=2, heads=2, head_dim=24), "hsdp", (0, 0, 1))
    samples = lab.samples[:4]
    plan = lab.plan("cp", samples, np.random.default_rng(0))
    (counted,), predicted = lab.counted_by_rank([(plan, samples)]), lab.predicted(plan)
    state = lab.memory.state_bytes(lab.nodes)
    assert state[2] == pytest.approx(state_bytes(lab.runners[2]), rel=0.01)
    assert state[0] == pytest.approx(state[2] / 2, rel=0.01)
    assert counted[2] <= predicted[2] <= 1.25 * counted[2], "it gathers nothing, and is counted with what others do"
    assert predicted[0] == pytest.approx(counted[0], rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dit", "wan"])
def test_twenty_one_held_out_plans_of_eight_layers(tmp_path, name):
    cache = write_samples(tmp_path / "cache", 24, 12, seed=6)
    lab = Weighing(cache, ModelConfig(name=name, layers=8, heads=4, head_dim=32))
    found = errors(lab, 21, 3, 8, seed=3)
    assert np.mean(found) <= 0.015, found


def tight_batches(lab: Weighing, count: int, seed: int) -> None:
    """Random batches, each under a limit that it hardly fits: no plan that is said to fit goes over it."""
    rng, work, limits = np.random.default_rng(seed), [], []
    base = float(lab.memory.state_bytes((0, 0))[0])
    for _ in range(count):
        picks = rng.choice(len(lab.samples), int(rng.integers(1, 7)), replace=False)
        samples = [lab.samples[int(k)] for k in picks]
        tokens = sum(lab.spec.tokens(s.latent_shape) for s in samples)
        limit = int(base * 1.25 + float(rng.uniform(0.3, 0.9)) * tokens / 2 * lab.memory.token_bytes())
        try:
            work.append((lab.plan("zellige", samples, rng, memory=int(limit * (1 - MARGIN))), samples))
        except PlanError:
            continue
        limits.append(limit)
    assert len(work) >= 0.5 * count
    assert len({len(plan.rounds) for plan, _ in work}) > 1
    over = [n / limit for n, limit in zip(lab.counted(work), limits, strict=True) if n > limit]
    assert over == []


def test_sixty_random_batches_stay_under_a_tight_limit(tiny):
    tight_batches(tiny, 60, seed=7)


@pytest.mark.slow
def test_five_hundred_random_batches_stay_under_a_tight_limit(tiny):
    tight_batches(tiny, 500, seed=8)
