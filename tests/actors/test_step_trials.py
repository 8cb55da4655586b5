"""Steps of policies against each other: batches, processes, the link between them, the benchmark's figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from zellige_ray.actors.link import obstacle
from zellige_ray.actors.process_pool import ProcessPool
from zellige_ray.actors.step_trials import IDLE, draw_batches, step_trials
from zellige_ray.attention.layout import compile_layout
from zellige_ray.cli import main
from zellige_ray.config import RunConfig
from zellige_ray.data import mini
from zellige_ray.data.mini_latents import write_mini_latents
from zellige_ray.placement import Plan

HEADS, HEAD_DIM, LAYERS, FLOAT = 4, 12, 1, 4
needs_namespaces = pytest.mark.skipif(bool(obstacle()), reason=f"no network namespaces: {obstacle()}")


def config() -> RunConfig:
    return RunConfig.model_validate(
        {
            "data": {"source": "mini"},
            "batch": {"samples": 1},
            "model": {"name": "dit", "layers": LAYERS, "heads": HEADS, "head_dim": HEAD_DIM},
            "workers": {"count": 2, "min": 2, "wait_timeout_s": 1.0, "ping_timeout_s": 2.0},
        }
    )


def formula_bytes(plan: Plan) -> int:
    """What all ranks send in the exchanges of a step, by the layout."""
    layouts = [compile_layout(round_, rank, HEADS) for round_ in plan.rounds for rank in range(2)]
    return sum(layout.wire_bytes(HEAD_DIM, FLOAT) for layout in layouts) * LAYERS


def running(marker: str) -> list[int]:
    """Processes whose environment names the marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def bench(*arguments: str) -> int:
    return main(["bench", "step", *arguments])


def test_the_mini_sets_shapes_are_those_of_all_its_samples(tmp_path: Path) -> None:
    listed = {sample["id"] for sample in yaml.safe_load(mini._LIST.read_text())["samples"]}
    index = write_mini_latents(tmp_path / "latents", fraction=4).index()
    assert set(index.ids) == listed
    assert index.count("video") > 20


def test_batches_are_mixed_idle_under_dp_and_the_same_for_a_seed(tmp_path: Path) -> None:
    index = write_mini_latents(tmp_path / "latents").index()
    batches = draw_batches(index, config(), 3)
    assert batches == draw_batches(index, config(), 3)
    for batch in batches:
        loads = [0, 0]
        for s in sorted(batch, key=lambda s: -s.tokens()):
            loads[loads.index(min(loads))] += s.tokens() * (28 * HEADS * HEAD_DIM + 4 * s.text_tokens + 4 * s.tokens())
        assert 8 <= sum(s.media == "image" for s in batch) <= 12
        assert 1 <= sum(s.media == "video" for s in batch) <= 3
        assert 1 - sum(loads) / (2 * max(loads)) > 0.9 * IDLE


@pytest.mark.dist
@pytest.mark.timeout(240)
def test_processes_over_loopback_send_the_bytes_of_the_layout_and_share_equal_plans() -> None:
    with step_trials(config(), linked=False, fraction=4) as (trials, index):
        batches = draw_batches(index, config(), 1, idle=0.0)
        planner = trials.planner(batches)
        plans = {name: trials.plans(planner, batches, name) for name in ("dp", "cp", "zellige", "bags:g2n1")}
        turns = trials.interleaved(batches, plans, repeats=1)
    steps = {name: turn[0][0] for name, turn in turns.items()}
    assert steps["cp"] is steps["bags:g2n1"]
    assert steps["dp"].sent_bytes == 0 < steps["cp"].sent_bytes
    assert {n: s.sent_bytes for n, s in steps.items()} == {n: formula_bytes(p[0]) for n, p in plans.items()}


@pytest.mark.slow
@pytest.mark.dist
@needs_namespaces
@pytest.mark.timeout(240)
def test_bench_step_over_a_limited_link_tells_every_figure(capfd: pytest.CaptureFixture[str]) -> None:
    small = ("--repeats", "1", "--batches", "1", "--shrink", "2")
    assert bench("--json", "--rates", "50", "400", "--netns", "required", *small) == 0
    figures = json.loads(capfd.readouterr().out)
    slow, fast = figures["rates"]
    assert (slow["mbit_s"], fast["mbit_s"]) == (50, 400)
    assert figures["link"].startswith("two network namespaces")
    for row in figures["rates"]:
        policies = {"dp", "cp", "bags:best-static", "even", "zellige"}
        for key in ("step_s", "ratio", "ratio_spread", "predicted_ratio", "exchange_bytes", "exchange_share"):
            assert set(row[key]) == policies
        assert row["step_s"]["bags:best-static"] == min(row["static_step_s"].values())
        assert row["ratio"]["zellige"] == 1.0
        assert 0 < row["exchange_share_bags"] < 1
        # what the workers measure is the link that was set
        assert row["measured_rates"]["bytes_per_s"] == pytest.approx(row["mbit_s"] * 1e6 / 8, rel=0.15)
    assert slow["step_s"]["cp"] > fast["step_s"]["cp"]
    assert slow["exchange_bytes"]["cp"] == fast["exchange_bytes"]["cp"]


@pytest.mark.slow
@pytest.mark.dist
@needs_namespaces
@pytest.mark.timeout(240)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_bench_that_is_interrupted_or_killed(end: signal.Signals) -> None:
    marker = f"ZELLIGE_TEST_MARKER=step-{os.getpid()}-{end.name}"
    name, _, value = marker.partition("=")
    command = [sys.executable, "-m", "zellige_ray", "bench", "step", "--repeats", "50", "--rates", "50"]
    process = subprocess.Popen(command, env={**os.environ, name: value}, stderr=subprocess.DEVNULL)
    try:
        _await(lambda: len(running(marker)) == 3, 60)  # the bench and two ranks
        time.sleep(3)  # into the set-up of the link, or a step
        process.send_signal(end)
        assert process.wait(20) != 0
        _await(lambda: not running(marker), 20)
    finally:
        for pid in running(marker):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(240)
def test_a_worker_that_dies_ends_the_trial_by_name(tmp_path: Path) -> None:
    cache = write_mini_latents(tmp_path / "latents", fraction=8)
    with ProcessPool(config(), cache.folder, tmp_path, linked=False) as pool:
        members = pool.start(2, 2, None, 60.0, lambda worker, reason: None)
        os.kill(members[1].pid, signal.SIGKILL)
        gathered = pool.gather(pool.submit("sent_bytes", {m.worker: () for m in members}), 20.0)
        assert list(gathered.lost) == ["worker-1"]
        assert not gathered.complete
    assert not any(Path(f"/proc/{m.pid}").exists() for m in members)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--rates", "0"), "rate 0"),
        (("--rates", "fast"), "rate fast"),
        (("--rates", "5000"), "rate 5000"),
        (("--policies", "zelige"), "zelige"),
        (("--policies", "dp"), "--policies lacks 'zellige'"),
        (("--repeats", "0"), "--repeats is 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    arguments: Sequence[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == 2
    assert named in capsys.readouterr().err


def test_namespaces_that_are_required_and_not_allowed_are_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert bench("--netns", "required") == 2
    assert "--netns required: network namespaces need root" in capsys.readouterr().err


def _await(condition: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)
