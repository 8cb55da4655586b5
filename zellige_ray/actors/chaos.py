"""Chaos: a cluster of several raylets on this machine, a run as a job on it, and the things that happen to both.

Processes are ended by their ids, never by name; nothing outside of this cluster is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from zellige_ray.actors.journal import RESTARTED
from zellige_ray.actors.prepared import DRIVER
from zellige_ray.actors.session import SYSTEM_CONFIG
from zellige_ray.errors import PoolError
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, MembershipEvent, NoteEvent, StepEvent
from zellige_ray.monitor.metrics import read_events

POLL_S = 0.05
WAIT_S = 180.0
NODE_MEMORY_BYTES = 80 << 20
# a dead raylet is seen after 1.5 s instead of 15 s
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that was done to a run.

    time: Unix seconds. worker: that it was done to, DRIVER, or empty when the run itself will say whom it hit. pids: of
    the workers that had nothing to do with it.
    """

    kind: str
    time: float
    worker: str
    pids: dict[str, int]


class Field:
    """A Ray cluster of this process: a head without workers, and nodes with room for one worker each."""

    def __init__(self, num_gpus: int = 0, node_ip: str | None = None) -> None:
        """num_gpus: pretended, per node; then workers are placed by GPU. node_ip: that all nodes here listen on."""
        from ray.cluster_utils import Cluster

        os.environ["RAY_AUTH_MODE"] = "disabled"
        self._temp = Path(tempfile.mkdtemp(prefix="zc"))  # short: unix sockets lie in it
        self._num_gpus = num_gpus
        self._where = {} if node_ip is None else {"node_ip_address": node_ip}
        self._cluster = Cluster(
            initialize_head=True,
            connect=False,
            head_node_args={
                "num_cpus": 0, "include_dashboard": False, "temp_dir": str(self._temp), "gcs_server_port": 0,
                "dashboard_port": 0, "object_store_memory": NODE_MEMORY_BYTES,
                "_system_config": HEALTH | SYSTEM_CONFIG, **self._where,
            },
        )  # fmt: skip
        self.address: str = self._cluster.address

    def add_node(self) -> str:
        """A node for one worker; its id."""
        node = self._cluster.add_node(
            num_cpus=1, num_gpus=self._num_gpus, object_store_memory=NODE_MEMORY_BYTES, wait=True, **self._where
        )
        return str(node.node_id)

    @property
    def nodes(self) -> list[str]:
        """The ids of the nodes with workers."""
        return [str(n.node_id) for n in self._cluster.worker_nodes]

    def remove_node(self, node_id: str, graceful: bool) -> None:
        """Ends a node by SIGTERM, or by SIGKILL."""
        node = next(n for n in self._cluster.worker_nodes if str(n.node_id) == node_id)
        self._cluster.remove_node(node, allow_graceful=graceful)

    def drain(self, node_id: str, deadline_s: float) -> None:
        """The notice that a spot instance gets before it goes."""
        import ray
        from ray.core.generated import autoscaler_pb2

        deadline = int((time.time() + deadline_s) * 1000)
        preemption = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        client = ray._raylet.GcsClient(address=self.address)
        accepted, why = client.drain_node(node_id, preemption, "preemption", deadline)
        if not accepted:
            raise PoolError(f"node {node_id} can't be drained: {why}")

    def close(self) -> None:
        """Ends every process of the cluster."""
        self._cluster.shutdown()
        shutil.rmtree(self._temp, ignore_errors=True)


class Run:
    """`zellige train` as a job on a field."""

    def __init__(self, field: Field, folder: Path, settings: dict[str, Any]) -> None:
        """settings: of the run; `folder` is set."""
        self.field, self._parent = field, folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "run.yaml"
        path.write_text(yaml.safe_dump({**settings, "folder": str(folder)}), encoding="utf-8")
        environment = {**os.environ, "RAY_ADDRESS": field.address, "RAY_AUTH_MODE": "disabled", "CI": "1"}
        self._log = (folder / "log.txt").open("w", encoding="utf-8")
        self.job = subprocess.Popen(
            [sys.executable, "-m", "zellige_ray", "train", str(path)],
            env=environment, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """The run folder, made before there are workers; a name that is not there until it is."""
        made = next(self._parent.glob(f"*/{run_folder.CONFIG}"), self._parent / "none" / run_folder.CONFIG)
        return made.parent.resolve()

    def events(self) -> list[tuple[float, Event]]:
        """(time, event) so far."""
        path = self.folder / run_folder.METRICS
        return list(read_events(path)) if path.exists() else []

    def steps(self) -> int:
        """Committed steps."""
        path = self.folder / run_folder.LEDGER
        return path.read_text(encoding="utf-8").count('"commit"') if path.exists() else 0

    def members(self) -> dict[str, Any]:
        """Who is alive: see `memory.write_members`."""
        path = self.folder / run_folder.MEMBERS
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"members": []}
        return value

    def wait(self, true: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Returns when it is so. Raises PoolError when the job ended, or after the time-out."""
        end = time.monotonic() + timeout_s
        while not true():
            if self.job.poll() is not None or time.monotonic() > end:
                log = (self._parent / "log.txt").read_text(encoding="utf-8")[-2000:]
                raise PoolError(f"{what}: not within {timeout_s:.0f} s, exit code {self.job.poll()}; log: {log}")
            time.sleep(POLL_S)

    def wait_for_size(self, size: int) -> None:
        """Returns when so many workers are in, and have done a step together."""
        self.wait(lambda: len(self.members()["members"]) == size, f"{size} workers")
        self.more_steps(2)

    def more_steps(self, num: int) -> None:
        """Returns after that many more steps."""
        goal = self.steps() + num
        self.wait(lambda: self.steps() >= goal, f"step {goal}")

    # What happens

    def signal_worker(self, kind: str, number: signal.Signals, index: int) -> Happening:
        """SIGKILL or SIGSTOP to the index-th member."""
        member, others = self._pick(index)
        happening = Happening(kind, time.time(), member["worker"], others)
        os.kill(member["pid"], number)
        return happening

    def kill_driver(self) -> Happening:
        """SIGKILL to the driver actor's process."""
        members = self.members()
        others = {m["worker"]: m["pid"] for m in members["members"]}
        happening = Happening("driver_kill", time.time(), DRIVER, others)
        os.kill(members["driver_pid"], signal.SIGKILL)
        return happening

    def remove_node(self, index: int, graceful: bool) -> Happening:
        """The node of the index-th member goes away."""
        member, others = self._pick(index)
        happening = Happening("node_remove" if graceful else "raylet_kill", time.time(), member["worker"], others)
        self.field.remove_node(member["node"], graceful)
        return happening

    def drain(self, index: int, deadline_s: float) -> Happening:
        """The node of the index-th member gets notice."""
        member, others = self._pick(index)
        happening = Happening("drain", time.time(), member["worker"], others)
        self.field.drain(member["node"], deadline_s)
        return happening

    def finish(self, stop: bool = True) -> dict[str, Any]:
        """Asks the job to stop, or waits until it is done; its summary. Raises PoolError when it failed."""
        if stop:
            self.job.send_signal(signal.SIGTERM)
        try:
            code = self.job.wait(WAIT_S)
        finally:
            self.kill()
        if code != 0:
            log = (self._parent / "log.txt").read_text(encoding="utf-8")[-2000:]
            raise PoolError(f"the run ended with exit code {code}: {log}")
        summary: dict[str, Any] = json.loads((self.folder / run_folder.SUMMARY).read_text(encoding="utf-8"))
        return summary

    def kill(self) -> None:
        """Ends the job's own process, if it is there."""
        self.job.kill()
        self.job.wait()
        self._log.close()

    def _pick(self, index: int) -> tuple[dict[str, Any], dict[str, int]]:
        members = self.members()["members"]
        picked = members[index % len(members)]
        return picked, {m["worker"]: m["pid"] for m in members if m is not picked}


def stall_s(happening: Happening, events: list[tuple[float, Event]]) -> float | None:
    """From a blow to the start of the first step that the run began after it knew of the blow.

    A step that was under way, or ordered, when the blow fell may still count, and may even begin after it; that is no
    recovery. None when the run never noticed, or no step came after it.
    """
    known = next((t for t, e in events if t > happening.time and _tells(e, happening)), None)
    if known is None:
        return None
    started = [e.started for _, e in events if isinstance(e, StepEvent) and e.started > known]
    return min(started) - happening.time if started else None


def _tells(event: Event, happening: Happening) -> bool:
    """Is this how the run says that it knows?"""
    if happening.worker == DRIVER:
        return isinstance(event, NoteEvent) and RESTARTED in event.text
    if not isinstance(event, MembershipEvent):
        return False
    return event.change == "left" and happening.worker in ("", event.worker)


def boundary_stalls(events: list[tuple[float, Event]], change: str) -> list[float]:
    """For workers that came or left between two steps: from the commit of one to the start of the next."""
    stalls = []
    for at, (_, event) in enumerate(events):
        if not isinstance(event, MembershipEvent) or event.change != change or event.replayed:
            continue
        before = [t for t, e in events[:at] if isinstance(e, StepEvent)]
        after = [e.started for _, e in events[at:] if isinstance(e, StepEvent)]
        if before and after:
            stalls.append(min(after) - before[-1])
    return stalls


def losses(events: list[tuple[float, Event]]) -> dict[int, float]:
    """Step -> loss, of the last time that it was committed."""
    return {e.step: e.loss for _, e in events if isinstance(e, StepEvent)}
