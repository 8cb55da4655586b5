"""Two hosts that are two network namespaces: a link that is slow, and then cut."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.test_churn_on_nodes import settings
from zellige_ray.actors.chaos import Field, Happening, Run, stall_s
from zellige_ray.actors.chaos_data import write_random_latents
from zellige_ray.data.audit import verify
from zellige_ray.monitor.events import MembershipEvent

pytestmark = [pytest.mark.ray, pytest.mark.dist, pytest.mark.slow, pytest.mark.timeout(400)]
SPACE, NEAR, FAR = "zellige-far", "zlgn0", "zlgn1"
NEAR_IP, FAR_IP = "10.213.7.1", "10.213.7.2"
PING_TIMEOUT_S = 2.0


def sh(command: str) -> bool:
    return subprocess.run(command.split(), capture_output=True, timeout=30, check=False).returncode == 0


@pytest.fixture
def far() -> Iterator[str]:
    """A namespace with a link to this one; the command that runs something in it."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("two network namespaces need root and iproute2")
    inside = f"ip netns exec {SPACE}"
    try:
        made = sh(f"ip netns add {SPACE}") and sh(f"ip link add {NEAR} type veth peer name {FAR}")
        if not made:
            pytest.skip("this kernel or container lets nobody make network namespaces or veth links")
        for command in (
            f"ip link set {FAR} netns {SPACE}", f"ip addr add {NEAR_IP}/24 dev {NEAR}", f"ip link set {NEAR} up",
            f"{inside} ip addr add {FAR_IP}/24 dev {FAR}", f"{inside} ip link set {FAR} up",
            f"{inside} ip link set lo up",
        ):  # fmt: skip
            assert sh(command), command
        yield inside
    finally:
        sh(f"ip netns del {SPACE}")
        sh(f"ip link del {NEAR}")


class FarNode:
    """A raylet in the other namespace."""

    def __init__(self, inside: str, field: Field, folder: Path) -> None:
        ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
        start = ["start", f"--address={field.address}", f"--node-ip-address={FAR_IP}", "--num-cpus=1", "--block"]
        self._log = folder.open("a", encoding="utf-8")
        self.process = subprocess.Popen(
            [*inside.split(), *ray, *start, "--object-store-memory=80000000"],
            stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        )  # fmt: skip

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self._log.close()


def test_a_slow_link_is_borne_and_a_cut_one_is_a_lost_worker(far: str, tmp_path: Path) -> None:
    write_random_latents(tmp_path / "latents", 30, 1)
    field = Field(node_ip=NEAR_IP)
    nodes: list[FarNode] = []
    try:
        run = Run(field, tmp_path / "runs", settings(tmp_path, workers={"count": 2, "ping_timeout_s": PING_TIMEOUT_S}))
        try:
            run.wait(lambda: (run.folder / "ledger.jsonl").exists(), "the run's start")
            field.add_node()
            nodes.append(FarNode(far, field, tmp_path / "far.txt"))
            run.wait_for_size(2)  # gloo took the addresses that Ray knows, not the host name's
            if sh(f"tc qdisc add dev {NEAR} root netem delay 20ms"):
                run.more_steps(3)
                assert len(run.members()["members"]) == 2
                sh(f"tc qdisc del dev {NEAR} root")
            run.more_steps(2)
            happening = Happening("cut", time.time(), "", {})
            assert sh(f"{far} ip link set {FAR} down")
            run.wait(lambda: len(run.members()["members"]) == 1, "the far worker is given up", 60)
            run.more_steps(3)
            assert sh(f"{far} ip link set {FAR} up")
            nodes.pop().end()
            nodes.append(FarNode(far, field, tmp_path / "far.txt"))
            run.wait_for_size(2)
            summary = run.finish()
        finally:
            run.kill()
    finally:
        for node in nodes:
            node.end()
        field.close()
    assert verify(run.folder / "ledger.jsonl").ok
    assert (summary["samples_lost"], summary["samples_doubled"]) == (0, 0)
    stall = stall_s(happening, run.events())
    assert stall is not None and stall < 5 * PING_TIMEOUT_S + 3
    left = [e for _, e in run.events() if isinstance(e, MembershipEvent) and e.change == "left"]
    assert len(left) == 1
    print(f"stall {stall:.2f} s, {left[0].reason}")
