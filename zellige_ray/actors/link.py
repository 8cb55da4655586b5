"""A link: two network namespaces of this machine, joined by a pair of interfaces whose rate is set.

The namespaces have no names: each lives as long as the process that was started in it, and takes its interface along.
So nothing is left behind however that process, or whoever made the link, comes to its end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from zellige_ray.errors import PoolError

INTERFACE = "zellige0"
ADDRESSES = ("10.213.7.1", "10.213.7.2")
ALONE = ("unshare", "--net", "--")  # what starts a command in a namespace of its own, as the same process
TIMEOUT_S = 20.0
MTU_BYTES = 9000
# What may leave at once: a millisecond's worth, but at least one of the kernel's large segments. Smaller ones would be
# cut to packets by the ranks' own cores, which a network card does for them.
BURST_S, MIN_BURST_BYTES = 0.001, 72 << 10
QUEUE_BYTES = 64 << 20  # more than a sender has in flight: a link delays, it drops nothing


class Link:
    """Joins the namespaces of two processes that were started with `ALONE`."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Raises PoolError naming the command that failed."""
        self._pids = tuple(pids)
        self._run(0, f"ip link add {INTERFACE} type veth peer name {INTERFACE} netns {pids[1]}")
        for side, address in enumerate(ADDRESSES):
            self._run(side, f"ip addr add {address}/24 dev {INTERFACE}")
            self._run(side, f"ip link set {INTERFACE} mtu {MTU_BYTES} up")
            self._run(side, "ip link set lo up")

    def set_rate(self, mbit_s: float) -> None:
        """Limits both directions, each to so many megabits per second, headers included."""
        burst = max(MIN_BURST_BYTES, round(BURST_S * mbit_s * 1e6 / 8))
        for side in range(len(ADDRESSES)):
            self._run(
                side,
                f"tc qdisc replace dev {INTERFACE} root tbf rate {round(mbit_s * 1e6)}bit burst {burst} "
                f"limit {QUEUE_BYTES}",
            )

    def _run(self, side: int, command: str) -> None:
        inside = ["nsenter", f"--net=/proc/{self._pids[side]}/ns/net", *command.split()]
        try:
            done = subprocess.run(inside, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as fault:
            raise PoolError(f"`{command}` did not run: {fault}") from fault
        if done.returncode != 0:
            raise PoolError(f"`{command}` failed: {done.stderr.strip() or f'exit code {done.returncode}'}")


def obstacle() -> str:
    """Why this user can't have namespaces and limited links here; empty where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found; install util-linux and iproute2"
    tried = [*ALONE, "sh", "-c", f"ip link add {INTERFACE} type veth peer name zellige1 && "]
    tried[-1] += f"tc qdisc add dev {INTERFACE} root tbf rate 1mbit burst 16kb limit 64kb"
    try:
        done = subprocess.run(tried, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as fault:
        return f"namespaces can't be tried: {fault}"
    return "" if done.returncode == 0 else f"this kernel or container refuses: {done.stderr.strip()}"
