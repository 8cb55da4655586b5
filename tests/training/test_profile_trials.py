"""Trials of shared sequences: what they are, and that what was planted in their seconds is found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.placement.simulated import simulated_curves
from zellige_ray.placement import Cluster, CostModel, HardwareProfile, ModelPreset, Plan
from zellige_ray.placement.forecast import forecast
from zellige_ray.placement.plan import Round
from zellige_ray.placement.step_curves import StepCurves
from zellige_ray.training.profile_trials import Trial, fit_trials, halved_round

HEADS = 4
MODEL = ModelPreset("m", 3, 128, HEADS, 4.0, "cross", 4, "none")
CURVES = simulated_curves()
ROUNDS = [halved_round(n, HEADS, [(0, 1)], text=1) for n in (64, 512)]


def trial(round_: Round, curves: StepCurves, waited_s: float = 0.0) -> Trial:
    """What rank 0 would measure on a machine of these curves."""
    hardware = HardwareProfile("here", 1, 2, 1 << 50, 1e12, 1e12, 1e12, 1e12, 0.0, state="replicated", curves=curves)
    cluster = Cluster((0, 0), (1 << 50,) * 2, (1.0, 1.0))
    f = forecast(Plan(2, (round_,), "here"), cluster, CostModel(hardware, MODEL)).ranks[0]
    return Trial(round_, f.linear_s, f.attention_s, f.exchange_s + waited_s)


def test_planted_wander_kernels_and_the_price_of_sharing_are_found_again() -> None:
    machine = replace(CURVES, shared_s=3e-4, wander=0.02, units=CURVES.units.scaled(1.07))
    found = fit_trials(CURVES, [trial(r, machine) for r in ROUNDS], MODEL, 0, (0, 0)).on(CURVES)
    assert found.shared_s == pytest.approx(3e-4)
    assert found.wander == pytest.approx(0.02)
    for way in ("forward", "backward"):
        at = [np.array([300.0]), np.array([500.0])]
        assert getattr(found.units, way)(*at) == pytest.approx(1.07 * getattr(CURVES.units, way)(*at))
    assert replace(found, shared_s=0.0, wander=0.0, units=CURVES.units) == CURVES


def test_trials_quicker_than_their_parts_change_nothing() -> None:
    quick = [Trial(r, 0.0, 0.0, 0.0) for r in ROUNDS]
    assert fit_trials(CURVES, quick, MODEL, 0, (0, 0)).on(CURVES) == CURVES
    assert fit_trials(CURVES, [], MODEL, 0, (0,)).on(CURVES) == CURVES


@pytest.mark.parametrize("heads", [1, 3, 4])
def test_a_halved_round_gives_each_of_a_pair_half_and_others_nothing(heads: int) -> None:
    round_ = halved_round(11, heads, [(0, 2), (1, 4)], text=2)
    assert round_.ids == ("shared-0", "shared-1")
    tokens = {r: sum(b - a for _, rank, a, b in round_.shards_K4.tolist() if rank == r) for r in range(5)}
    assert tokens == {0: 5, 2: 6, 1: 5, 4: 6, 3: 0}
    cells = sum((h1 - h0) * (q1 - q0) for _, _, h0, h1, q0, q1 in round_.tiles_M6.tolist())
    assert cells == 2 * heads * 11
