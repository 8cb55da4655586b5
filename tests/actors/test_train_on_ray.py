"""Whole runs on a real Ray: actors, a killed process, Ctrl-C, resume, and bad input, through the public face."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.actors.tiny_data import write_cache
from zellige_ray.api import train
from zellige_ray.config import RunConfig, parse_config
from zellige_ray.data.cache import LatentCache
from zellige_ray.errors import CheckpointError, ZelligeError
from zellige_ray.monitor.events import Event, MembershipEvent, NoteEvent, PhaseEvent, PreviewEvent, StepEvent
from zellige_ray.training.checkpoint_files import newest, read_position

pytestmark = [pytest.mark.ray, pytest.mark.dist]
RUN_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


def settings(cache: LatentCache, folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "steps": 12,
        "evaluate_every": 6,
        "compare_batches": 1,
        "data": {"source": str(cache.folder), "held_out": 3},
        "batch": {"samples": 5},
        "model": {"name": "dit", "layers": 2, "heads": 3, "head_dim": 12},
        "workers": {"count": 3, "ping_timeout_s": 10},  # machines of tests are busy
        "checkpoint": {"every": 5},
        "preview": {"every": 6, "steps": 2},
        **changes,
    }


def make_config(cache: LatentCache, folder: Path, **changes: Any) -> RunConfig:
    return parse_config(settings(cache, folder, **changes))


def process_of(worker: str, events: list[Event]) -> int:
    """The pid of a worker, as a person reads it."""
    (note,) = [e.text for e in events if isinstance(e, NoteEvent) and e.text.startswith("workers: ")]
    found = re.search(rf"{worker} \(pid (\d+)\)", note)
    assert found is not None, note
    return int(found[1])


def test_a_run_trains_previews_compares_and_leaves_a_whole_folder(
    ray_instance: Any, cache: LatentCache, tmp_path: Path
) -> None:
    events: list[Event] = []
    summary = train(make_config(cache, tmp_path), on_event=events.append)
    folder = Path(summary["run_folder"])
    assert (tmp_path / "latest").resolve() == folder
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8")) == summary
    wanted = "steps heldout_first heldout_last heldout_drop images videos samples_lost samples_doubled gap_to_bound"
    wanted += " speedup_over_dp speedup_over_cp replans"
    assert set(wanted.split()) <= set(summary)
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"], summary["replans"]) == (12, 0, 0, 0)
    assert summary["images"] > 0 < summary["videos"]
    files = [folder / f for e in events if isinstance(e, PreviewEvent) for f in e.files]
    assert {f.suffix for f in files} == {".png", ".mp4"}
    assert all(f.stat().st_size > 100 for f in files)
    assert (folder / "report.html").stat().st_size > 10_000
    assert parse_config(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))).steps == 12
    assert len(list((folder / "plans").iterdir())) == 12


def test_a_worker_killed_by_pid_is_survived_and_replaced(ray_instance: Any, cache: LatentCache, tmp_path: Path) -> None:
    events: list[Event] = []
    joined_at: list[int] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, MembershipEvent) and event.change == "joined":
            joined_at.append(event.step)
        if isinstance(event, StepEvent) and event.step == 3:
            os.kill(process_of("worker-1", events), signal.SIGKILL)
        if isinstance(event, StepEvent) and joined_at and event.step == joined_at[0] + 3:
            os.kill(os.getpid(), signal.SIGTERM)

    config = make_config(cache, tmp_path, steps=100_000, evaluate_every=100_000, preview={"every": None})
    summary = train(config, on_event=on_event)
    changes = [(e.change, e.worker) for e in events if isinstance(e, MembershipEvent)]
    assert changes == [("left", "worker-1"), ("joined", "worker-3")]
    assert (summary["samples_lost"], summary["samples_doubled"], summary["replans"]) == (0, 0, 1)
    assert summary["stopped"]
    assert summary["world_sizes"] == [2, 3]
    steps = [e for e in events if isinstance(e, StepEvent)]
    assert [e.step for e in steps] == list(range(1, summary["steps"] + 1))
    assert steps[-1].world_size == 3


@pytest.mark.slow  # `test_churn` resumes with 1, 3 and 5 workers, as threads
def test_resumed_with_another_number_of_workers_it_goes_on_from_the_newest_checkpoint(
    ray_instance: Any, cache: LatentCache, tmp_path: Path
) -> None:
    once = train(make_config(cache, tmp_path / "once", steps=12, workers={"count": 2}))
    events: list[Event] = []
    train(make_config(cache, tmp_path / "twice", steps=7, workers={"count": 2}))
    run = (tmp_path / "twice" / "latest").resolve()
    summary = train(
        make_config(cache, tmp_path / "twice", steps=12, workers={"count": 1}, resume=str(run)), on_event=events.append
    )
    assert summary["run_folder"] == str(run)
    assert [e.step for e in events if isinstance(e, StepEvent)] == [8, 9, 10, 11, 12]
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (12, 0, 0)
    assert summary["world_sizes"] == [1, 2]
    assert summary["images"] + summary["videos"] == summary["samples"]  # both sessions count
    assert summary["heldout_first"] == pytest.approx(once["heldout_first"], rel=1e-5)
    assert summary["heldout_last"] == pytest.approx(once["heldout_last"], rel=1e-5)


def test_a_checkpoint_of_another_model_is_refused_before_anything_starts(
    ray_instance: Any, cache: LatentCache, tmp_path: Path
) -> None:
    train(make_config(cache, tmp_path, steps=2, compare_batches=0, preview={"every": None}))
    run = (tmp_path / "latest").resolve()
    before = sorted(p.name for p in tmp_path.iterdir())
    model = {"name": "dit", "layers": 3, "heads": 3, "head_dim": 12}
    with pytest.raises(CheckpointError, match=r"model.layers is 2 there, 3 here"):
        train(make_config(cache, tmp_path, model=model, resume=str(run)))
    with pytest.raises(CheckpointError, match="at step 2 of 2: nothing is left; raise steps"):
        train(make_config(cache, tmp_path, steps=2, resume=str(run)))
    with pytest.raises(CheckpointError, match=r"no complete checkpoint in"):
        train(make_config(cache, tmp_path, resume=str(tmp_path)))
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_the_command_with_a_complete_checkpoint(
    cache: LatentCache, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    path = tmp_path / "run.yaml"
    config = settings(
        cache, tmp_path, steps=100_000, evaluate_every=100_000, preview={"every": None}, workers={"count": 2}
    )
    path.write_text(yaml.safe_dump(config | {"checkpoint": {"every": 100_000}}), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    command = subprocess.Popen(
        [sys.executable, "-m", "zellige_ray", "train", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        run = wait_for_steps(tmp_path, 5, command)
        command.send_signal(number)
        output, _ = command.communicate(timeout=RUN_TIMEOUT_S)
    finally:
        command.kill()
    assert command.returncode == code, output
    checkpoint = newest(run)
    assert checkpoint is not None, output
    assert f"to go on: the same command, with resume={run}" in output
    steps = json.loads((run / "summary.json").read_text(encoding="utf-8"))["steps"]
    assert read_position(checkpoint).step == steps >= 5
    assert steps < 100_000


@pytest.mark.parametrize(("number", "fault"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, ZelligeError)])
def test_a_signal_before_the_first_step_ends_at_once_and_leaves_nothing(
    ray_instance: Any, cache: LatentCache, tmp_path: Path, number: signal.Signals, fault: type[BaseException]
) -> None:
    """There is no room for workers, so that the run would wait for minutes."""
    sent: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, PhaseEvent) and event.name == "workers" and not sent:
            sent.append(time.monotonic())
            os.kill(os.getpid(), number)

    holder = ray_instance.remote(num_cpus=8)(Holder).remote()
    ray_instance.get(holder.here.remote(), timeout=60)
    try:
        with pytest.raises(fault):
            train(make_config(cache, tmp_path, workers={"count": 2}), on_event=on_event)
    finally:
        ray_instance.kill(holder)
    assert time.monotonic() - sent[0] < 30
    assert list(tmp_path.iterdir()) == []


class Holder:
    """Takes all CPUs."""

    def here(self) -> bool:
        return True


def wait_for_steps(folder: Path, steps: int, command: subprocess.Popen[str]) -> Path:
    end = time.monotonic() + RUN_TIMEOUT_S
    while time.monotonic() < end and command.poll() is None:
        run = (folder / "latest").resolve()
        ledger = run / "ledger.jsonl"
        if ledger.exists() and ledger.read_text(encoding="utf-8").count('"commit"') >= steps:
            return run
        time.sleep(0.2)
    raise AssertionError(f"no {steps} steps within {RUN_TIMEOUT_S} s, exit code {command.poll()}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.name=wann"], "unknown model 'wann'"),
        (["placement.policy=zelige"], "zellige"),
        (["data.held_out=12"], "12 samples can't give 12 held-out ones"),
        (["workers.min=9", "workers.count=4"], "workers.min is 9, above workers.count 4"),
        (["resume=nowhere"], "no complete checkpoint in"),
        (["seed=99999999999999999999999"], "seed"),
        (["name=2020-13-45"], "override 'name=2020-13-45'"),
        (["placement.policy=bags:x"], "bag spec 'x' is not of the form"),
        (["stepps=3"], "stepps: unknown key, the nearest known one is steps"),
    ],
)
def test_bad_input_is_named_ends_with_code_2_and_writes_nothing(
    cache: LatentCache, tmp_path: Path, changes: list[str], message: str
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings(cache, tmp_path / "runs")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "zellige_ray", "train", str(path), *changes],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_more_workers_than_the_cluster_has_places_for_is_named(
    ray_instance: Any, cache: LatentCache, tmp_path: Path
) -> None:
    from zellige_ray.errors import PoolError

    with pytest.raises(PoolError, match=r"workers.count is 99, the cluster has 8 CPUs"):
        train(make_config(cache, tmp_path, workers={"count": 99}))
    assert not (tmp_path / "latest").exists()
