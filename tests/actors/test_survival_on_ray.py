"""What only real processes can show: a driver that is killed, a worker that freezes, a job that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.actors.test_train_on_ray import make_config, settings, wait_for_steps
from tests.actors.tiny_data import write_cache
from zellige_ray.actors.prepared import NAMESPACE
from zellige_ray.api import train
from zellige_ray.data.cache import LatentCache
from zellige_ray.monitor.events import Event, MembershipEvent, NoteEvent, PhaseEvent, StepEvent

pytestmark = [pytest.mark.ray, pytest.mark.dist]
PING_TIMEOUT_S = 5.0  # machines of tests are busy
ENDLESS: dict[str, Any] = {"steps": 100_000, "evaluate_every": 100_000, "preview": {"every": None}}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


def members(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(((folder / "latest").resolve() / "members.json").read_text(encoding="utf-8"))
    return value


def pids(folder: Path) -> dict[str, int]:
    return {m["worker"]: m["pid"] for m in members(folder)["members"]}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_driver_starts_again_and_a_frozen_worker_is_removed_while_the_others_keep_their_processes(
    ray_instance: Any, cache: LatentCache, tmp_path: Path
) -> None:
    """One run, so that its start is paid once: SIGKILL the driver, then SIGSTOP a worker, then stop."""
    events: list[Event] = []
    seen: dict[str, Any] = {}

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepEvent) and event.step >= 4 and "killed" not in seen:
            seen["pids"] = pids(tmp_path)
            seen["killed"] = members(tmp_path)["driver_pid"]
            os.kill(seen["killed"], signal.SIGKILL)
        if isinstance(event, NoteEvent) and "the driver died" in event.text:
            seen["again"] = event.text
        if isinstance(event, StepEvent) and "again" in seen and "frozen" not in seen:
            seen["after"] = pids(tmp_path)
            seen["frozen"] = seen["pids"]["worker-2"]
            os.kill(seen["frozen"], signal.SIGSTOP)
        if isinstance(event, MembershipEvent) and event.change == "left" and "frozen" in seen and "left" not in seen:
            seen["left"] = event
            os.kill(seen["frozen"], signal.SIGCONT)  # it wakes in a later epoch
            seen["until"] = time.monotonic() + 1.0
        if isinstance(event, StepEvent) and "left" in seen and time.monotonic() > seen["until"]:
            os.kill(os.getpid(), signal.SIGTERM)

    config = make_config(cache, tmp_path, **ENDLESS, workers={"count": 3, "ping_timeout_s": PING_TIMEOUT_S})
    summary = train(config, on_event=on_event)
    assert seen["after"] == seen["pids"]  # the driver's death changed no worker
    replayed = next(e for e in events if isinstance(e, StepEvent) and e.step == seen["left"].step).samples
    assert (seen["left"].worker, seen["left"].replayed) == ("worker-2", replayed)  # 5, or the 4 that end a pass
    assert "no answer to pings" in seen["left"].reason
    steps = [e.step for e in events if isinstance(e, StepEvent)]
    assert steps == list(range(1, summary["steps"] + 1))
    assert (summary["samples_lost"], summary["samples_doubled"]) == (0, 0)
    wait_until(lambda: not any(alive(pid) for pid in seen["pids"].values()), 10)
    names = [e["name"] for e in ray_instance.util.list_named_actors(all_namespaces=True)]
    assert not names  # nothing detached is left on a cluster that others may use


def test_a_killed_job_leaves_no_actor_behind_its_lease_and_a_checkpoint(
    ray_instance: Any, cache: LatentCache, tmp_path: Path
) -> None:
    lease_s = PING_TIMEOUT_S + 5
    path = tmp_path / "run.yaml"
    workers = {"count": 2, "lease_s": lease_s, "ping_timeout_s": PING_TIMEOUT_S}
    config = settings(cache, tmp_path, **ENDLESS, workers=workers, checkpoint={"every": 100_000})
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    environment = {**os.environ, "RAY_ADDRESS": ray_instance.get_runtime_context().gcs_address}
    environment["RAY_AUTH_MODE"] = "disabled"
    job = subprocess.Popen([sys.executable, "-m", "zellige_ray", "train", str(path)], env=environment)
    try:
        run = wait_for_steps(tmp_path, 3, job)
        all_pids = [members(tmp_path)["driver_pid"], *pids(tmp_path).values()]
    finally:
        job.kill()
        job.wait()
    killed = time.monotonic()
    assert all(map(alive, all_pids))
    wait_until(lambda: not any(map(alive, all_pids)), lease_s + 10)
    assert time.monotonic() - killed > lease_s / 2  # they did wait for a driver that might come back
    wait_until(lambda: not ours(ray_instance), 5)
    assert list((run / "checkpoints").glob("step-*/complete.json"))


def ours(ray: Any) -> list[str]:
    return [e["name"] for e in ray.util.list_named_actors(all_namespaces=True) if e["namespace"] == NAMESPACE]


def wait_until(true: Any, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, f"not so within {timeout_s} s"
        time.sleep(0.1)


def test_a_worker_killed_while_it_is_set_up_is_replaced_before_the_first_step(
    ray_instance: Any, cache: LatentCache, tmp_path: Path
) -> None:
    """A run of exactly that size: it can't begin without the replacement."""
    events: list[Event] = []
    killed: list[int] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, PhaseEvent) and (event.name, event.done) == ("workers", 0) and not killed:
            wait_until(lambda: setting_up(killed), 90)
            os.kill(killed[0], signal.SIGKILL)

    config = make_config(
        cache, tmp_path, steps=2, compare_batches=0, preview={"every": None}, workers={"count": 1, "lease_s": 120}
    )
    summary = train(config, on_event=on_event)
    notes = [e.text for e in events if isinstance(e, NoteEvent)]
    assert any(n.startswith("worker-0 died while it was set up") and n.endswith("another is asked for") for n in notes)
    assert (summary["steps"], summary["world_sizes"], summary["replans"]) == (2, [1], 0)
    assert any("worker-1 (pid" in n for n in notes)


def setting_up(found: list[int]) -> bool:
    """Finds the process of a worker of this Ray that is building its model."""
    mine = {os.getpid()}
    for _ in range(3):  # Ray's daemons, and their children
        mine |= {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(pid) in mine}  # noqa: PTH208
    for pid in mine:
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::WorkerHost"):
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return bool(found)


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1


def test_the_path_of_a_restarted_driver_imports_nothing_heavy() -> None:
    heavy = "('torch', 'diffusers', 'numba', 'av', 'matplotlib', 'transformers')"
    code = f"import sys, zellige_ray.actors.driver_host as h; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
