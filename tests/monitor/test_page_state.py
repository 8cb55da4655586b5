"""The page's state: what it says follows from the events, and it stays small however long a run is."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from zellige_ray.monitor.events import (
    Event,
    HeldOutEvent,
    MembershipEvent,
    NoteEvent,
    PhaseEvent,
    RatesEvent,
    StepEvent,
)
from zellige_ray.monitor.page import state as rules
from zellige_ray.monitor.page.state import About, PageState
from zellige_ray.monitor.simulation import Simulation

Make = Callable[..., StepEvent]


@pytest.fixture
def state(tmp_path: Path) -> PageState:
    return PageState(About("a run", tmp_path, 12, "wan", "zellige"))


def test_state_of_a_whole_run_is_json_and_complete(state: PageState, events: list[Event]) -> None:
    for number, event in enumerate(events):
        state.see(event, 1000.0 + number)
    value = json.loads(json.dumps(state.full(), allow_nan=False))
    assert value["format"] == "zellige.page/1"
    assert value["run"]["name"] == "a run"
    assert (value["now"]["step"], value["now"]["world_size"], value["now"]["epoch"]) == (12, 3, 1)
    assert value["now"]["tokens_per_s"] == 12_000
    assert value["now"]["hfu"] == pytest.approx(0.3)
    assert value["now"]["prediction_error"] == pytest.approx(0.5 / 0.42 - 1, abs=1e-5)
    assert value["loads"]["rank"] == [0, 1, 2]
    assert value["loads"]["planned"][2] == pytest.approx([0.12, 0.2, 0.03, 0.05])
    assert value["loads"]["measured"][2] == pytest.approx([0.12, 0.2, 0.05, 0.04])
    assert value["loads"]["limit_bytes"] == [2 << 30] * 3
    assert value["points"]["step"] == list(range(1, 13))
    assert {t["kind"] for t in value["told"]} == {"left", "preview", "checkpoint", "warning", "info"}
    assert value["held_out"][-1][0] == 12


def test_nothing_happened_yet_is_a_state_too(state: PageState) -> None:
    state.see(PhaseEvent("encode", 3, 9), 1.0)
    value = state.full()
    assert value["now"] is None and value["phases"] == [["encode", 3, 9]]


def test_state_is_bounded_over_more_steps_than_are_kept(state: PageState, make_step: Make) -> None:
    """25,000 steps and as many notes: no column is longer than its bound, and neither is the answer."""
    one = make_step(1)
    for number in range(1, 25_001):
        state.see(dataclasses.replace(one, step=number), float(number))
        if number % 5 == 0:
            state.see(NoteEvent("info", "something"), float(number))
            state.see(PhaseEvent(f"phase {number}", 1, 1), float(number))
    assert state.num_steps == rules.KEPT_STEPS == 10_000
    value = state.full()
    assert len(value["told"]) == rules.KEPT_TOLD
    assert len(value["phases"]) == rules.KEPT_PHASES
    steps = value["points"]["step"]
    assert len(steps) <= rules.SHOWN_POINTS
    assert (steps[0] - 15_000) <= 10 and steps[-1] == 25_000
    assert len(json.dumps(value)) < 300_000


def test_replayed_steps_replace_those_that_are_void(state: PageState, make_step: Make) -> None:
    for number in (1, 2, 3, 4, 5, 3, 4):
        state.see(make_step(number), float(number))
    assert state.full()["points"]["step"] == [1, 2, 3, 4]


def test_time_left_is_by_tokens_at_the_pace_of_the_clock(state: PageState, make_step: Make) -> None:
    for number in range(1, 5):
        state.see(make_step(number), 2.0 * number)
    assert state.full()["now"]["left_s"] == pytest.approx(8 * 2.0)


def test_loss_that_is_not_finite_is_null(state: PageState, make_step: Make) -> None:
    state.see(dataclasses.replace(make_step(1), loss=math.nan, predicted_s=0.0), 1.0)
    state.see(HeldOutEvent(1, math.inf), 1.0)
    text = json.dumps(state.full(), allow_nan=False)
    assert json.loads(text)["points"]["loss"] == [None]


def test_ranks_are_named_by_the_members_of_their_epoch(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path / "simulation", 4, steps=6, lost_at=4)
    state = PageState(About("simulation", simulation.folder, 6, "wan", "zellige"))
    for event in simulation.events():
        state.see(event, 1.0)
        if isinstance(event, StepEvent):
            size = event.world_size
            assert state.step()["loads"]["worker"] == [f"w{r}" for r in range(size)]
    assert size == 3
    (left,) = [t for t in state.full()["told"] if t["kind"] == "left"]
    assert "w3" in left["text"] and "killed" in left["text"]


def test_the_slow_rank_of_a_simulation_is_named(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path / "simulation", 8, steps=5)
    state = PageState(About("simulation", simulation.folder, 5, "wan", "zellige"))
    for event in simulation.events():
        state.see(event, 1.0)
    value = state.step()["slowest"]
    assert (value["rank"], value["cause"]) == (2, "machine")


def test_a_change_of_members_is_told_at_once(state: PageState) -> None:
    state.see(MembershipEvent(3, 1, "left", "w1", "SIGKILL", 0.2, 4), 5.0)
    assert state.told()["told"]["kind"] == "left"
    state.see(RatesEvent(1.0, 1.0, 1.0, 1), 6.0)
    assert state.told()["told"]["kind"] == "left"
