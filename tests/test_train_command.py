"""`zellige train` around a training that only tells events: arguments, what is printed where, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zellige_ray import api, cli
from zellige_ray.config import RunConfig
from zellige_ray.errors import PoolError
from zellige_ray.monitor.events import Event, HeldOutEvent, NoteEvent

SUMMARY = {"steps": 3, "heldout_drop": 0.25, "samples_lost": 0, "run_folder": "runs/mini"}


class FakeTraining:
    """Stands in for `api.train`: keeps the config it got, tells its events, ends as it was told."""

    def __init__(self) -> None:
        self.config: RunConfig | None = None
        self.fault: BaseException | None = None
        self.events: list[Event] = [NoteEvent("info", "2 ranks"), HeldOutEvent(3, 0.75)]

    def __call__(self, config: RunConfig, on_event: Callable[[Event], None]) -> dict[str, Any]:
        self.config = config
        for event in self.events:
            on_event(event)
        if self.fault is not None:
            raise self.fault
        return SUMMARY


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeTraining]:
    fake = FakeTraining()
    monkeypatch.setattr(api, "train", fake)
    monkeypatch.chdir(tmp_path)
    yield fake
    assert list(tmp_path.glob("runs*")) == []


def test_without_a_config_the_mini_set_is_trained(training: FakeTraining) -> None:
    assert cli.main(["train"]) == 0
    assert training.config is not None
    assert (training.config.name, training.config.data.source) == ("mini", "mini")


def test_overrides_alone_change_the_packaged_config(training: FakeTraining) -> None:
    assert cli.main(["train", "steps=3", "model.layers=1"]) == 0
    assert training.config is not None
    assert (training.config.steps, training.config.model.layers) == (3, 1)


def test_a_file_is_taken_and_overridden(training: FakeTraining, tmp_path: Path) -> None:
    path = tmp_path / "my=run.yaml"
    path.write_text("name: mine\ndata: {source: there}\nbatch: {samples: 2}\n")
    assert cli.main(["train", path.name, "seed=5"]) == 0
    assert training.config is not None
    assert (training.config.name, training.config.seed) == ("mine", 5)


def test_a_person_gets_progress_and_figures_on_stdout(
    training: FakeTraining, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["train"])
    out, err = capsys.readouterr()
    assert "held-out loss 0.7500 at step 3" in out
    assert "held-out loss fell by" in out and "25.0%" in out
    assert err == ""


def test_a_program_gets_one_object_on_stdout_and_progress_on_stderr(
    training: FakeTraining, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "--json", "steps=3"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == SUMMARY
    assert "held-out loss 0.7500 at step 3" in err


@pytest.mark.parametrize(("fault", "code"), [(KeyboardInterrupt(), 130), (PoolError("2 GPUs, workers.min is 4"), 3)])
def test_exit_code_of_a_run_that_ends_early(
    training: FakeTraining, fault: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    training.fault = fault
    assert cli.main(["train", "--json"]) == code
    assert capsys.readouterr().out == "", "no summary of a run that has none"


def test_api_takes_a_path_with_overrides_or_a_whole_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from zellige_ray.actors import launch
    from zellige_ray.configs import configs

    seen: list[RunConfig] = []
    monkeypatch.setattr(launch, "train", lambda config, on_event: seen.append(config) or SUMMARY)
    assert api.train(configs["mini"], ["steps=3"]) == SUMMARY
    assert api.train(seen[0]) == SUMMARY
    assert seen[0] == seen[1] and seen[0].steps == 3
    with pytest.raises(TypeError, match="overrides go with a path"):
        api.train(seen[0], ["steps=4"])
