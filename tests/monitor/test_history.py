"""Figures of a run, from events whose sums are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest

from zellige_ray.monitor.events import (
    CheckpointEvent,
    ComparisonEvent,
    HeldOutEvent,
    NoteEvent,
    RatesEvent,
    StepEvent,
)
from zellige_ray.monitor.figures import flops_text, plan_flops
from zellige_ray.monitor.history import WINDOW, History
from zellige_ray.placement import Cluster, CostModel, Sequence, load_hardware, load_model, make_plan


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


def test_hfu_is_flops_over_seconds_ranks_and_peak(history: History) -> None:
    assert history.hfu() == pytest.approx(3e8 / (0.5 * 2e9))
    figures = history.figures()
    assert figures["hfu"] == pytest.approx(0.3)
    assert (figures["hfu_peak_flops"], figures["flops_per_s"]) == (2e9, pytest.approx(6e8))


def test_hfu_is_absent_where_nobody_counted_flops(make_step: Callable[..., StepEvent]) -> None:
    history = History(rates=RatesEvent(2e9, 1e9, 2e9, 1 << 30))
    history.see(dataclasses.replace(make_step(1), flops=0.0))
    assert history.hfu() is None and "hfu" not in history.figures()


@pytest.mark.parametrize("name", ["dit-xl", "wan-1.3b"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_flops_of_a_plan_are_those_of_the_cost_model(name: str, checkpointing: Literal["none", "full"]) -> None:
    """At one FLOP/s, the cost model's seconds are FLOPs."""
    hardware = dataclasses.replace(load_hardware("cpu"), linear_flops=1.0, attention_flops=1.0, attention_curve=())
    model = dataclasses.replace(load_model(name), checkpointing=checkpointing)
    cost = CostModel(hardware, model)
    batch = [Sequence("clip", 5000, 40), Sequence("picture", 900, 12)]
    plan = make_plan(batch, Cluster.uniform(1, 2, 64 << 30), cost)
    text = np.array([s.text_tokens for s in batch])
    tokens = np.array([s.tokens for s in batch]) + (text if model.text == "joint" else 0)
    seconds = model.layers * float((cost.linear_s(tokens, text) + cost.attention_s(tokens)).sum())
    assert plan_flops(plan, model) == pytest.approx(seconds, rel=1e-9)


def test_prediction_error_is_measured_over_predicted(history: History) -> None:
    assert history.prediction_error() == pytest.approx(0.5 / 0.42 - 1)


def test_without_a_peak_there_is_no_hfu_but_flops_per_second(make_step: Callable[..., StepEvent]) -> None:
    history = History()
    history.see(RatesEvent(2e9, 1e9, 0.0, 1 << 30))
    history.see(make_step(1))
    assert history.hfu() is None and "hfu" not in history.figures()
    assert history.flops_per_s() == pytest.approx(6e8), "3e8 of each rank in half a second"
    assert flops_text(6e8) == "600 MFLOP/s" and flops_text(1.234e12) == "1.23 TFLOP/s"


def test_a_step_that_was_run_again_counts_once_with_its_last_value(make_step: Callable[..., StepEvent]) -> None:
    history = History()
    for turn, number in enumerate((1, 2, 3, 4, 2, 3)):
        history.see(dataclasses.replace(make_step(number), loss=float(turn)))
        history.see(HeldOutEvent(number, 1.0))
    assert [s.step for s in history.steps] == [e.step for e in history.held_out] == [1, 2, 3]
    assert [s.loss for s in history.steps] == [0.0, 4.0, 5.0]
    assert history.replays == [(1, 4)]
    assert history.figures()["tokens"] == 18_000


def test_ten_thousand_steps_of_eight_ranks_fit_into_a_bounded_history(make_step: Callable[..., StepEvent]) -> None:
    history, step = History(kept=100), make_step(1, ranks=8)
    for number in range(1, 10_001):
        history.see(dataclasses.replace(step, step=number))
        history.see(NoteEvent("info", "a note"))
        history.see(CheckpointEvent(number, "checkpoints/step", 0.1))
    assert max(map(len, (history.steps, history.notes, history.checkpoints))) < 200
    assert sum(bool(s.planned) for s in history.steps) == WINDOW, "loads are kept of the newest steps only"
    assert history.steps[-1].step == 10_000 and len(history.measured()) == 8
    whole = History()
    for number in range(1, 101):
        whole.see(dataclasses.replace(step, step=number))
    assert len(whole.steps) == 100, "a report sees all of them"
