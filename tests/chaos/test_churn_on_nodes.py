"""Churn: a seeded timetable of kills, freezes, drains and node losses over a run on several Ray nodes."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from zellige_ray.actors.chaos import Field, Run
from zellige_ray.actors.chaos_data import write_random_latents
from zellige_ray.data.audit import verify
from zellige_ray.monitor.events import MembershipEvent, NoteEvent

pytestmark = [pytest.mark.ray, pytest.mark.dist]
WORKERS = 3
GRACE_S = 120.0  # for a run to have all of its workers again
# per epoch, beyond the first ones; torch's caches and Ray's own threads settle by then
MAX_FDS, MAX_THREADS, MAX_BYTES = 1.0, 0.5, 3 << 20


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "steps": 1_000_000,
        "evaluate_every": 1_000_000,
        "compare_batches": 0,
        "data": {"source": str(folder / "latents"), "held_out": 3},
        "batch": {"samples": 6},
        "model": {"name": "dit", "layers": 2, "heads": 2, "head_dim": 12},
        "workers": {"count": WORKERS, "ping_timeout_s": 3.0},
        "checkpoint": {"every": 40},
        "preview": {"every": None},
        **changes,
    }


class Monkey:
    """Draws what happens next, and does it."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run, self.rng, self.done = run, random.Random(seed), list[str]()

    def act(self, kind: str | None = None) -> None:
        """On a machine that is short of time replacements come late: the last worker is only hit on purpose."""
        run, index = self.run, self.rng.randrange(WORKERS)
        run.wait(lambda: len(run.members()["members"]) > 1, "two workers", GRACE_S)
        kind = kind or self.rng.choice(["kill", "kill", "freeze", "driver", "remove", "raylet", "drain", "two"])
        self.done.append(kind)
        with contextlib.suppress(ProcessLookupError, StopIteration):  # it had gone by itself a moment ago
            self._do(kind, index)
        if len(run.field.nodes) < WORKERS:
            time.sleep(self.rng.uniform(0.5, 2.0))
            run.field.add_node()

    def _do(self, kind: str, index: int) -> None:
        run = self.run
        match kind:
            case "kill":
                run.signal_worker(kind, signal.SIGKILL, index)
            case "freeze":
                run.signal_worker(kind, signal.SIGSTOP, index)
            case "driver":
                run.kill_driver()
            case "remove" | "raylet":
                run.remove_node(index, graceful=kind == "remove")
            case "drain":
                members = run.members()["members"]
                node = members[index % len(members)]["node"]
                self._until_left(run.drain(index, 20.0).worker)
                run.field.remove_node(node, graceful=True)
            case "two":
                run.signal_worker(kind, signal.SIGKILL, index)
                run.signal_worker(kind, signal.SIGKILL, index + 1)

    def _until_left(self, worker: str) -> None:
        run = self.run
        run.wait(lambda: worker not in {m["worker"] for m in run.members()["members"]}, f"{worker} leaves", GRACE_S)


def footprint(pid: int) -> tuple[int, int, int]:
    """(file descriptors, threads, resident bytes) of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    threads = re.search(r"Threads:\s+(\d+)", status)
    rss = re.search(r"VmRSS:\s+(\d+)", status)
    assert threads is not None and rss is not None
    return len(os.listdir(f"/proc/{pid}/fd")), int(threads[1]), int(rss[1]) * 1024  # noqa: PTH208


def churn(folder: Path, seconds: float, seed: int, pause_s: tuple[float, float]) -> tuple[Run, Monkey, dict[str, Any]]:
    write_random_latents(folder / "latents", 30, 1)
    field = Field()
    try:
        run = Run(field, folder / "runs", settings(folder))
        try:
            run.wait(lambda: (run.folder / "ledger.jsonl").exists(), "the run's start")
            for _ in range(WORKERS):
                field.add_node()
            run.wait_for_size(WORKERS)
            monkey, end = Monkey(run, seed), time.monotonic() + seconds
            first = ["drain", "raylet", "two"]
            while time.monotonic() < end or first:
                monkey.act(first.pop() if first else None)
                time.sleep(monkey.rng.uniform(*pause_s))
                run.more_steps(1)
            run.wait_for_size(WORKERS)
            return run, monkey, run.finish()
        finally:
            run.kill()
    finally:
        field.close()


def check(run: Run, monkey: Monkey, summary: dict[str, Any]) -> None:
    report = verify(run.folder / "ledger.jsonl")
    assert report.ok, (monkey.done, report)
    assert (summary["samples_lost"], summary["samples_doubled"]) == (0, 0)
    events = [e for _, e in run.events()]
    left = [e for e in events if isinstance(e, MembershipEvent) and e.change == "left"]
    again = [e for e in events if isinstance(e, NoteEvent) and "the driver died" in e.text]
    assert len(left) >= sum(k != "driver" for k in monkey.done) / 2, monkey.done  # some blows hit who was gone
    assert len(again) >= (1 if "driver" in monkey.done else 0)
    drained = [e for e in left if "drains" in e.reason]
    assert drained and all(e.replayed == 0 for e in drained)


def test_a_short_churn_loses_and_doubles_nothing(tmp_path: Path) -> None:
    check(*churn(tmp_path, seconds=15, seed=1, pause_s=(1.0, 2.0)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_minutes_of_churn(tmp_path: Path) -> None:
    check(*churn(tmp_path, seconds=120, seed=2, pause_s=(3.0, 8.0)))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif("ZELLIGE_LONG_CHURN" not in os.environ, reason="half an hour: set ZELLIGE_LONG_CHURN=1")
def test_thirty_minutes_of_churn(tmp_path: Path) -> None:
    check(*churn(tmp_path, seconds=1800, seed=3, pause_s=(5.0, 15.0)))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_survivors_of_many_epochs_hold_no_more_descriptors_threads_or_memory(tmp_path: Path) -> None:
    """worker-0 and the driver live through it; every other event is a kill of one of the others."""
    write_random_latents(tmp_path / "latents", 30, 1)
    field = Field()
    try:
        run = Run(field, tmp_path / "runs", settings(tmp_path))
        try:
            run.wait(lambda: (run.folder / "ledger.jsonl").exists(), "the run's start")
            for _ in range(WORKERS):
                field.add_node()
            run.wait_for_size(WORKERS)
            marks: list[tuple[int, dict[str, tuple[int, int, int]]]] = []
            for i in range(24):
                members = run.members()
                if i >= 6:
                    pids = {"worker-0": members["members"][0]["pid"], "driver": members["driver_pid"]}
                    marks.append((members["epoch"], {k: footprint(p) for k, p in pids.items()}))
                assert members["members"][0]["worker"] == "worker-0"
                run.signal_worker("kill", signal.SIGKILL, 1 + i % 2)
                run.wait(lambda e=members["epoch"]: run.members()["epoch"] > e, "the next epoch")
                run.wait_for_size(WORKERS)
            run.finish()
        finally:
            run.kill()
    finally:
        field.close()
    half = len(marks) // 2
    for who in ("worker-0", "driver"):
        for i, limit in enumerate((MAX_FDS, MAX_THREADS, MAX_BYTES)):
            early = min(m[1][who][i] for m in marks[:half])
            late = min(m[1][who][i] for m in marks[half:])
            epochs = marks[half][0] - marks[0][0]
            assert (late - early) / epochs <= limit, (who, i, [m[1][who][i] for m in marks])
