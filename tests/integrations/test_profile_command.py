"""`zellige profile`: a real one on two workers, its file, and what reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zellige_ray import cli
from zellige_ray.placement import load_hardware
from zellige_ray.placement.profile_file import read_profile

MODEL = ["model.name=dit", "model.layers=2", "model.heads=2", "model.head_dim=16", "workers.count=2"]


@pytest.mark.dist
def test_a_profile_is_measured_written_and_read_where_hardware_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, cache = tmp_path / "here.yaml", f"data.cache={tmp_path / 'latents'}"
    assert cli.main(["profile", cache, *MODEL, "--out", str(out), "--budget", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["path"]) == out
    profile = read_profile(out)
    assert (profile.key.ranks, profile.key.threads) == (2, 1)
    assert profile.key.model.startswith("dit 2x2x16")
    curves = load_hardware(out).curves
    assert curves is not None and curves.reduced_by == 2
    assert 0 < curves.layer_s(64, 8) < curves.layer_s(2048, 8) < 10
    assert curves.reduce_s > 0 and curves.parameters > 0
    assert 0 <= curves.wander < 1
    assert not list(tmp_path.glob("*.draft*"))


def test_a_budget_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "--budget", "0"]) == 2
    assert "--budget is 0 s, it must be positive and finite" in capsys.readouterr().err
