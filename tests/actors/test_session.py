"""The session: what there is in a cluster and what a run needs, in one message; a cluster that is not there."""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.actors.tiny_data import write_cache
from zellige_ray.actors.network import unreachable
from zellige_ray.actors.session import _hush, resolve_workers
from zellige_ray.config import RunConfig, parse_config
from zellige_ray.errors import PoolError

ROOT = Path(__file__).parents[2]


def config(**workers: Any) -> RunConfig:
    return parse_config({"data": {"source": "mini"}, "batch": {"samples": 4}, "workers": workers})


@pytest.mark.parametrize(
    ("workers", "there", "said"),
    [
        ({"min": 4}, {"CPU": 2.0}, "the cluster has 2 CPUs, workers.min is 4: lower it or add nodes"),
        ({"min": 4}, {"CPU": 64.0, "GPU": 1.0}, "the cluster has 1 GPU, workers.min is 4: lower it or add nodes"),
        ({"count": 9}, {"CPU": 8.0}, "workers.count is 9, the cluster has 8 CPUs: lower it or add nodes"),
    ],
)
def test_fewer_places_than_needed_are_named_both(workers: dict[str, Any], there: dict[str, float], said: str) -> None:
    with pytest.raises(PoolError, match=f"^{said}$") as fault:
        resolve_workers(config(**workers), there)
    assert fault.value.exit_code == 3
    resolved, _ = resolve_workers(config(**workers), there, grows=True)
    assert resolved.workers.count in (4, 9), "nodes may join later"


def test_gpus_are_taken_where_there_are_any_and_cores_elsewhere() -> None:
    for there, count, gpu in (
        ({"CPU": 64.0, "GPU": 4.0}, 4, True),
        ({"CPU": 64.0}, 8, False),
        ({"CPU": 2.0}, 2, False),
    ):
        resolved, use_gpu = resolve_workers(config(), there)
        assert (resolved.workers.count, use_gpu) == (count, gpu)


def test_an_address_without_an_answer_is_explained_at_once() -> None:
    began = time.monotonic()
    assert unreachable("nowhere", 1.0) == "it has no port"
    assert unreachable("ray://127.0.0.1:1", 0.2) == "[Errno 111] Connection refused"
    assert unreachable("127.0.0.1:99999999999", 0.2) is not None
    assert time.monotonic() - began < 5
    for free in (None, "auto", "local"):
        assert unreachable(free, 0.2) is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert unreachable(f"127.0.0.1:{server.getsockname()[1]}", 1.0) is None


def test_what_rays_own_processes_say_of_a_death_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray prints it to stdout, amid JSON; it looks its listener up by this name when it connects."""
    from ray._private import worker

    assert "target=listen_error_messages" in inspect.getsource(worker.connect)
    monkeypatch.setattr(worker, "listen_error_messages", worker.listen_error_messages)
    _hush()
    assert worker.listen_error_messages(None, None) is None


def test_a_cluster_that_is_not_there_is_exit_code_3_within_seconds_and_leaves_nothing(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "cache")
    value = {"folder": str(tmp_path / "runs"), "data": {"source": str(cache.folder)}, "batch": {"samples": 2}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(value | {"model": {"name": "dit"}}))
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1", "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "zellige_ray", "train", str(tmp_path / "run.yaml")],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the Ray cluster at RAY_ADDRESS=127.0.0.1:1 can't be reached: [Errno 111]" in done.stderr
    assert "Traceback" not in done.stderr and "GCS" not in done.stderr
    assert not (tmp_path / "runs").exists()
