"""Weighed memory models: predicted peaks against counted ones, on plans that no coefficient comes from."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training.weighing import Weighing, write_samples
from zellige_ray.config import ModelConfig, PlacementConfig
from zellige_ray.errors import PlanError
from zellige_ray.placement.memory import MemoryModel

MARGIN = PlacementConfig().memory_margin
POLICIES = ("dp", "cp", "bags:g2n1", "even", "zellige", "random", "random")


def errors(lab: Weighing, plans: int, least: int, most: int, seed: int) -> list[float]:
    """Of each plan, |predicted / counted - 1| on its fullest rank."""
    rng, work = np.random.default_rng(seed), []
    for i in range(plans):
        picks = rng.choice(len(lab.samples), int(rng.integers(least, most)), replace=False)
        samples = [lab.samples[int(k)] for k in picks]
        work.append((lab.plan(POLICIES[i % len(POLICIES)], samples, rng), samples))
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
    base = lab.memory.state_bytes(2)
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
