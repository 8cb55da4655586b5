"""The README's path on a real head: `ray start --head --block`, `ray job submit --working-dir .`, logs, stop."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from tests.actors.tiny_data import write_cache
from tests.integrations.ray_head import Head, ray_head
from zellige_ray.data.audit import verify
from zellige_ray.training.checkpoint_files import newest, read_position

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
MAX_UPLOAD_BYTES = 2_000_000


def config_file(folder: Path, steps: int) -> Path:
    """A run config in the folder, with a latent cache of a few samples beside it."""
    cache = folder / "cache"
    if not cache.exists():
        write_cache(cache)
    path = folder / "run.yaml"
    config = {
        "folder": str(folder / "runs"), "steps": steps, "evaluate_every": 100_000, "compare_batches": 0,
        "data": {"source": str(cache), "held_out": 3}, "batch": {"samples": 5},
        "model": {"name": "dit", "layers": 1, "heads": 2, "head_dim": 12}, "workers": {"count": 2},
        "checkpoint": {"every": 100_000}, "preview": {"every": None},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(config))
    return path


def submit(head: Head, config: Path, job: str, *words: str) -> subprocess.CompletedProcess[str]:
    entry = ["--", "python", "-m", "zellige_ray", "train", str(config)]
    return head.ray("job", "submit", "--submission-id", job, "--working-dir", str(ROOT), *words, *entry)


@pytest.mark.parametrize("auth", ["disabled", "token"])
def test_a_submitted_run_trains_its_result_is_there_and_a_stopped_one_leaves_a_complete_checkpoint(
    auth: str, tmp_path: Path
) -> None:
    with ray_head(auth) as head:
        if auth == "token":
            assert head.get("/api/jobs/", None)[0] == 401
            assert head.get("/api/jobs/", "0" * 64)[0] in (401, 403)
        _trains_to_its_end(head, tmp_path / "whole")
        _is_stopped(head, tmp_path / "stopped")
        _upload_is_small(head)
        assert not any(head.folder.joinpath("home").glob(".ray/auth_token"))


def _upload_is_small(head: Head) -> None:
    """The working directory as it arrived: the whole package, data and tests left at home."""
    (arrived,) = (head.folder / "ray").glob("session_2*/runtime_resources/working_dir_files/_ray_pkg_*/")
    assert (arrived / "zellige_ray" / "data" / "sampler.py").exists()
    assert (arrived / "cluster_configs").is_dir()
    assert not {".git", ".venv", "tests", "benchmarks", "docs", "runs", "data"} & {p.name for p in arrived.iterdir()}
    files = [p for p in arrived.rglob("*") if p.is_file() and p.parent.name != "__pycache__"]  # which jobs made there
    assert 0 < sum(p.stat().st_size for p in files) < MAX_UPLOAD_BYTES


def _trains_to_its_end(head: Head, folder: Path) -> None:
    folder.mkdir()
    done = submit(head, config_file(folder, steps=8), "whole")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"Job 'whole' succeeded", said), said
    assert "step 8" in said, said
    logs = head.ray("job", "logs", "whole")
    assert "step 8" in logs.stdout, logs.stdout + logs.stderr
    run = (folder / "runs" / "latest").resolve()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (8, 0, 0)
    assert (run / "report.html").exists()
    assert verify(run / "ledger.jsonl").ok


def _is_stopped(head: Head, folder: Path) -> None:
    folder.mkdir()
    done = submit(head, config_file(folder, steps=1_000_000), "stopped", "--no-wait")
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for_steps(folder / "runs", 5)
    stopped = head.ray("job", "stop", "stopped")
    assert "was stopped" in stopped.stdout + stopped.stderr, stopped.stdout + stopped.stderr
    run = (folder / "runs" / "latest").resolve()
    end = time.monotonic() + 30
    while not (run / "summary.json").exists() and time.monotonic() < end:
        time.sleep(0.2)
    checkpoint = newest(run)
    assert checkpoint is not None, head.ray("job", "logs", "stopped").stdout
    report = verify(run / "ledger.jsonl")
    assert read_position(checkpoint).step == report.steps >= 5
    assert (report.samples_lost, report.samples_doubled) == (0, 0)


def wait_for_steps(folder: Path, steps: int, timeout_s: float = 120.0) -> None:
    end, ledger = time.monotonic() + timeout_s, folder / "latest" / "ledger.jsonl"
    while time.monotonic() < end:
        if ledger.exists() and ledger.read_text().count('"commit"') >= steps:
            return
        time.sleep(0.2)
    raise AssertionError(f"no {steps} steps within {timeout_s} s")
