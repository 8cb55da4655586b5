"""`zellige bench predict` from end to end, small: every figure, by its meaning rather than by how good it is."""

from __future__ import annotations

import json
import os

import pytest

from zellige_ray.cli import main


def bench(*arguments: str) -> int:
    return main(["bench", "predict", *arguments])


@pytest.mark.dist
@pytest.mark.timeout(240)
def test_predictions_stand_beside_what_was_measured_and_counted(capfd: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    small = ("--plans", "4", "--repeats", "1", "--budget", "1", "--layers", "2", "--batches", "1")
    assert bench("--json", *small) == 0
    assert os.sched_getaffinity(0) == cores, "orders leave from a worker's core, this process stays where it was"
    figures = json.loads(capfd.readouterr().out)
    plans = figures["plans"]
    assert [p["policy"] for p in plans] == ["dp", "cp", "random", "zellige"]
    assert [p["exchange_share"] > 0.02 for p in plans[:2]] == [False, True]
    errors = [p["predicted_s"] / p["measured_s"] - 1 for p in plans]
    assert figures["makespan_mape"] == pytest.approx(100 * sum(map(abs, errors)) / len(errors))
    assert all(0.3 < 1 + e < 3 for e in errors)
    assert figures["memory_mape"] < 5
    assert all(p["counted_bytes"] > 0 for p in plans)
    assert figures["curves_over_constants"] > 0
    assert figures["spread"] >= 1
    for plan in plans:
        for rank in plan["ranks"]:
            assert sum(rank["measured"]) < plan["measured_s"] < 5 * sum(rank["measured"])


@pytest.mark.parametrize(
    ("arguments", "named"), [(("--ranks", "0"), "--ranks is 0"), (("--head-dim", "2"), "--head-dim is 2")]
)
def test_bad_arguments_are_refused_by_name(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == 2
    assert named in capsys.readouterr().err
