"""`zellige ledger RUN`: the proof of a run, and one line for each thing that happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.actors.fake_pool import FakePool, Fault
from tests.actors.test_driver import run
from zellige_ray.cli import main


def test_each_event_is_one_line_with_who_why_seconds_and_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, FakePool([Fault("step", 3, die=("worker-1",))], spares=1))
    assert main(["ledger", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step      2  epoch    1  workers   2  left         worker-1: the actor died; 5 samples")
    assert lines[0].endswith(" s lost")
    assert "joined       worker-3: process 104 took over step 3 from a peer" in lines[1]
    assert main(["ledger", str(tmp_path), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["ok"], value["samples_lost"], value["samples_doubled"]) == (True, 0, 0)
    assert [e["event"] for e in value["events"]] == ["left", "joined"]
