"""Figures of a run, from events whose sums are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zellige_ray.monitor.events import ComparisonEvent, StepEvent
from zellige_ray.monitor.history import WINDOW, History


def test_rates_are_over_the_recent_steps_of_this_epoch(history: History) -> None:
    assert len(history.recent()) == 7, "the steps since the worker died"
    assert history.tokens_per_s() == pytest.approx(6000 / 0.5)
    assert history.samples_per_s() == pytest.approx(8 / 0.5)


def test_old_steps_leave_the_window(make_step: Callable[..., StepEvent]) -> None:
    history = History()
    history.see(make_step(6, seconds=100.0))
    for number in range(7, 7 + WINDOW):
        history.see(make_step(number, seconds=1.0))
    assert history.tokens_per_s() == pytest.approx(6000)


def test_idle_share_is_waiting_over_all_time_of_all_ranks(history: History) -> None:
    busy_s, idle_s = 3 * 0.37, 0.02 + 0.04
    assert history.idle_share() == pytest.approx(idle_s / (busy_s + idle_s))


def test_loads_are_means_by_rank(history: History) -> None:
    planned, measured = history.planned(), history.measured()
    assert [x.rank for x in planned] == [x.rank for x in measured] == [0, 1, 2]
    assert planned[2].linear_s == pytest.approx(0.12)
    assert measured[2].idle_s == pytest.approx(0.04)
    assert measured[0].memory_bytes == 400 << 20


def test_figures_add_up(history: History) -> None:
    figures = history.figures()
    assert figures["steps"] == 12
    assert (figures["images"], figures["videos"], figures["tokens"]) == (60, 36, 72_000)
    assert figures["heldout_drop"] == pytest.approx(1 - 0.9**8)
    assert figures["gap_to_bound"] == pytest.approx(0.05)
    assert figures["gap_to_bound_measured"] == pytest.approx(0.25)
    assert (figures["replans"], figures["warnings"]) == (1, 1)
    assert figures["speedup_over_dp"] == pytest.approx(1.5)
    assert figures["speedup_over_cp"] == pytest.approx(1.75)


def test_speedups_are_over_the_policy_of_the_run_whatever_its_name() -> None:
    history = History()
    history.see(ComparisonEvent(1, {"dp": (0.5, 0.5), "cp": (1.0, 1.0)}))
    figures = history.figures()
    assert figures["speedup_over_cp"] == 2.0
    assert "speedup_over_dp" not in figures


def test_a_run_without_steps_has_no_invented_figures() -> None:
    history = History()
    assert history.figures() == {
        "steps": 0, "images": 0, "videos": 0, "tokens": 0, "seconds": 0, "replans": 0, "warnings": 0,
    }  # fmt: skip
    assert history.idle_share() == history.tokens_per_s() == 0.0
    assert history.planned() == history.measured() == ()
