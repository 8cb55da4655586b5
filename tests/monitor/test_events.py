"""Events go to JSON and back unchanged, and what is no event is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import get_args

import pytest

from zellige_ray.monitor.events import Event, HeldOutEvent, StepEvent, from_json, kinds, to_json


def test_every_event_survives_json(events: list[Event]) -> None:
    assert {type(e) for e in events} == set(kinds.values()), "the made-up run has every kind"
    for event in events:
        assert from_json(json.loads(json.dumps(to_json(event), allow_nan=False))) == event


def test_every_event_has_a_kind() -> None:
    assert set(get_args(Event)) == set(kinds.values())


def test_events_are_frozen(events: list[Event]) -> None:
    for event in events:
        name = dataclasses.fields(event)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, name, 3)


def test_pass_is_called_pass_in_json(events: list[Event]) -> None:
    line = next(to_json(e) for e in events if isinstance(e, StepEvent))
    assert line["pass"] == 0 and "pass_" not in line


def test_figure_that_is_not_finite_is_null_in_json_and_nan_again() -> None:
    line = to_json(HeldOutEvent(3, math.inf))
    assert line == {"kind": "held_out", "step": 3, "loss": None}
    again = from_json(line)
    assert isinstance(again, HeldOutEvent) and math.isnan(again.loss)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"step": 1}, "unknown event kind None"),
        ({"kind": "stop"}, "unknown event kind 'stop'"),
        ({"kind": "held_out", "step": 1}, "malformed held_out event"),
        ({"kind": "held_out", "step": 1, "loss": 1.0, "more": 2}, "malformed held_out event"),
        ({"kind": "step", "planned": 3}, "malformed step event"),
    ],
)
def test_what_is_no_event_is_refused(value: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_json(value)
