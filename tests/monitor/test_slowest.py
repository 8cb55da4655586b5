"""Who is named the slowest, and what is said to be the reason."""

from __future__ import annotations

import numpy as np
import pytest

from zellige_ray.monitor.slowest import slowest

EVEN = np.array([[1.0, 2.0, 0.1, 0.5]] * 4)


def test_a_slow_machine_is_told_from_a_heavy_plan() -> None:
    measured = EVEN.copy()
    measured[2, :2] *= 1.5
    found = slowest([0, 1, 2, 3], EVEN, measured)
    assert found is not None
    assert (found.rank, found.cause) == (2, "machine")
    assert found.over == pytest.approx(1.5 / 1.125 - 1)
    assert "1.50x" in found.reason


def test_a_heavy_plan_is_told_from_a_slow_machine() -> None:
    planned = EVEN.copy()
    planned[1, 1] *= 2
    found = slowest([0, 1, 2, 3], planned, planned * 1.3)
    assert found is not None
    assert (found.rank, found.cause) == (1, "plan")
    assert found.reason == "the plan gave it 43% more than the mean, most of it attention"


def test_waiting_makes_nobody_slow() -> None:
    measured = EVEN.copy()
    measured[3, 3] = 60.0
    measured[0, 2] = 60.0
    found = slowest([0, 1, 2, 3], EVEN, measured)
    assert found is not None and found.cause == "even"
    assert "of all time goes to exchanges" in found.reason


def test_ranks_without_work_or_without_a_plan_are_no_fault() -> None:
    nothing = np.zeros((3, 4))
    assert slowest([], np.zeros((0, 4)), np.zeros((0, 4))) is None
    found = slowest([0, 1, 2], nothing, nothing)
    assert found is not None and found.cause == "even"
    found = slowest([0, 1, 2, 3], np.zeros((4, 4)), np.diag([1.0, 2.0, 3.0, 9.0]))
    assert found is not None and found.rank in range(4)
