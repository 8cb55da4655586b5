"""The doctor's judgement: from what was found on a machine to lines that say ok, warning or failure, and the mend.

Pure: what is found comes in as values, so that every illness can be tried on a healthy machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "warning", "failure"]
GIB = 1 << 30
MIN_PYTHON = (3, 11)
FLOORS = {"ray": (2, 57), "torch": (2, 13), "diffusers": (0, 42)}
PORTS = {6379: "Ray's control store", 8265: "Ray's dashboard and jobs", 10001: "Ray's client", 52365: "Ray's agent"}
MIN_SHM_BYTES, GOOD_SHM_BYTES = 64 << 20, 2 * GIB
MIN_DISK_BYTES, GOOD_DISK_BYTES = GIB, 10 * GIB
SLOW_ROUND_TRIP_S = 0.25


@dataclass(frozen=True, slots=True)
class Line:
    """One finding. mend: what to do about it; empty when it is ok."""

    check: str
    state: State
    found: str
    mend: str = ""

    def to_json(self) -> dict[str, str]:
        return {"check": self.check, "state": self.state, "found": self.found, "mend": self.mend}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Units: bytes."""

    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Page:
    """Where a run would serve its page. port: as set; free: what it would get, or why it can't listen there.

    host: empty where the page is turned off.
    """

    host: str
    port: int
    free: int | str


@dataclass(frozen=True, slots=True)
class Found:
    """What probes saw.

    versions: of distributions, None where absent. resolved: addresses that the host's own name means. routable: this
    machine's address on its way out. ports_taken: of `PORTS`. shm_bytes, disk_free_bytes: None where unseen.
    round_trip_s: by backend, or what went wrong. unreachable: what is wrong with RAY_ADDRESS. Units: bytes, seconds.
    """

    python: tuple[int, int, int]
    versions: Mapping[str, str | None]
    hostname: str
    resolved: tuple[str, ...]
    routable: str | None
    ports_taken: tuple[int, ...]
    shm_bytes: int | None
    disk_free_bytes: int | None
    folder: str
    gpus: tuple[Gpu, ...]
    round_trip_s: Mapping[str, float | str]
    page: Page = field(default_factory=lambda: Page("127.0.0.1", 8270, 8270))
    environment: Mapping[str, str] = field(default_factory=dict)
    token_file: bool = False
    unreachable: str | None = None


def python(found: Found) -> Line:
    text = ".".join(map(str, found.python))
    if found.python < MIN_PYTHON:
        return Line("python", "failure", text, "Zellige needs Python 3.11 or newer: PYTHON=python3.12 make train")
    return Line("python", "ok", text)


def versions(found: Found) -> Line:
    text = ", ".join(f"{name} {version or 'absent'}" for name, version in found.versions.items())
    absent = [name for name in FLOORS if found.versions.get(name) is None]
    if absent:
        return Line("versions", "failure", text, f"install {', '.join(absent)}: pip install -c constraints.txt .")
    old = [f"{n} {v} (needs {a}.{b})" for n, (a, b) in FLOORS.items() if _number(v := found.versions[n] or "") < (a, b)]
    if old:
        return Line("versions", "failure", text, f"too old: {', '.join(old)}: pip install -c constraints.txt .")
    return Line("versions", "ok", text)


def address(found: Found) -> Line:
    text = (
        f"{found.hostname} is {', '.join(found.resolved) or 'unknown here'}, the way out is {found.routable or 'none'}"
    )
    if not found.resolved:
        mend = (
            f"the host's own name means nothing: add it to /etc/hosts as {found.routable or 'ADDRESS'} {found.hostname}"
        )
        return Line("address", "failure", text, mend)
    loopback = all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in found.resolved)
    if found.routable is None:
        return Line("address", "warning", text, "only this machine can be reached: fine alone, not for several nodes")
    if loopback and "GLOO_SOCKET_IFNAME" not in found.environment:
        mend = "other nodes would be given loopback; Zellige binds gloo to Ray's address by itself, "
        mend += "but give `ray start` --node-ip-address, and NCCL_SOCKET_IFNAME where NCCL finds no way"
        return Line("address", "warning", text, mend)
    return Line("address", "ok", text)


def ports(found: Found) -> Line:
    if found.ports_taken:
        taken = ", ".join(f"{p} ({PORTS[p]})" for p in found.ports_taken)
        mend = "if that is not your cluster, give `ray start` others: --port, --dashboard-port, "
        mend += "--ray-client-server-port, --dashboard-agent-listen-port"
        return Line("ports", "warning", f"in use: {taken}", mend)
    return Line("ports", "ok", f"free: {', '.join(map(str, PORTS))}")


def page(found: Found) -> Line:
    host, port, free = found.page.host, found.page.port, found.page.free
    if not host:
        return Line("page", "ok", "page.enabled is false: no live page")
    if isinstance(free, str):
        mend = (
            "set page.host to an address of this machine, or page.port to another one; a run goes on without its page"
        )
        return Line("page", "warning", f"{host}:{port} can't be listened on: {free}", mend)
    if port not in (0, free):
        mend = f"a run would take {free} and say so; set page.port, or end what listens on {port}"
        return Line("page", "warning", f"port {port} is in use", mend)
    return Line("page", "ok", f"{host}:{free} is free for the live page")


def shared_memory(found: Found) -> Line:
    if found.shm_bytes is None:
        return Line("shared memory", "failure", "there is no /dev/shm", "mount a tmpfs there: Ray and NCCL use it")
    text = f"/dev/shm has {_bytes(found.shm_bytes)}"
    mend = "docker: --shm-size=16g; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    if found.shm_bytes <= MIN_SHM_BYTES:
        return Line("shared memory", "failure", text, mend)
    if found.shm_bytes < GOOD_SHM_BYTES:
        return Line("shared memory", "warning", text, f"{_bytes(GOOD_SHM_BYTES)} or more are usual; {mend}")
    return Line("shared memory", "ok", text)


def disk(found: Found) -> Line:
    if found.disk_free_bytes is None:
        return Line("disk", "failure", f"{found.folder} can't be read", "make it, or set folder to one that is there")
    text = f"{_bytes(found.disk_free_bytes)} free at {found.folder}"
    if found.disk_free_bytes < MIN_DISK_BYTES:
        return Line("disk", "failure", text, "a checkpoint needs 16 bytes per parameter: free space, or set folder")
    if found.disk_free_bytes < GOOD_DISK_BYTES:
        return Line("disk", "warning", text, "checkpoints of a large model need more: checkpoint.keep, or folder")
    return Line("disk", "ok", text)


def gpus(found: Found) -> Line:
    if not found.gpus:
        return Line("GPUs", "ok", "none: workers run on CPU cores, by gloo")
    text = "; ".join(f"{g.name} {_bytes(g.free_bytes)} free of {_bytes(g.total_bytes)}" for g in found.gpus)
    busy = [i for i, g in enumerate(found.gpus) if g.free_bytes < 0.9 * g.total_bytes]
    if busy:
        mend = f"another process holds memory of GPU {', '.join(map(str, busy))}: end it, or hide them by "
        return Line("GPUs", "warning", text, mend + "CUDA_VISIBLE_DEVICES")
    return Line("GPUs", "ok", text)


def round_trips(found: Found) -> Line:
    text = ", ".join(f"{b} {s * 1e3:.1f} ms" if isinstance(s, float) else f"{b}: {s}" for b, s in _trips(found))
    broken = [b for b, s in _trips(found) if isinstance(s, str)]
    if broken or not text:
        mend = "gloo: set GLOO_SOCKET_IFNAME to an interface that the nodes share; NCCL: NCCL_DEBUG=INFO says why"
        return Line("round trip", "failure", text or "no backend was tried", mend)
    slow = [b for b, s in _trips(found) if isinstance(s, float) and s > SLOW_ROUND_TRIP_S]
    if slow:
        return Line(
            "round trip", "warning", text, "far too slow for two exchanges per layer: is the machine overloaded?"
        )
    return Line("round trip", "ok", text)


def authentication(found: Found) -> Line:
    mode = found.environment.get("RAY_AUTH_MODE")
    if mode not in (None, "token", "disabled"):
        return Line("Ray authentication", "failure", f"RAY_AUTH_MODE={mode}", "set it to token or disabled")
    if mode == "token" and not found.token_file and "RAY_AUTH_TOKEN" not in found.environment:
        mend = "RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN must hold the cluster's token: `ray get-auth-token --generate`"
        return Line("Ray authentication", "failure", "token mode without a token", mend)
    if mode is None and found.token_file:
        mend = "`ray start` would ask for it and `ray job submit` not give it: export RAY_AUTH_MODE on both sides"
        return Line("Ray authentication", "warning", "RAY_AUTH_MODE is not set, and a token file is there", mend)
    if mode is None:
        mend = "export RAY_AUTH_MODE=disabled or token on both sides: any local ray.init() may turn tokens on"
        return Line("Ray authentication", "warning", "RAY_AUTH_MODE is not set", mend)
    return Line("Ray authentication", "ok", f"RAY_AUTH_MODE={mode}")


def cluster(found: Found) -> Line:
    where = found.environment.get("RAY_ADDRESS")
    if where is None:
        return Line("cluster", "ok", "RAY_ADDRESS is not set: Ray runs inside the command")
    if found.unreachable is not None:
        mend = "is the head running, the address right, RAY_AUTH_MODE the same on both sides? unset it to run alone"
        return Line("cluster", "failure", f"RAY_ADDRESS={where}: {found.unreachable}", mend)
    return Line("cluster", "ok", f"RAY_ADDRESS={where} answers")


checks: dict[str, Callable[[Found], Line]] = {
    "python": python,
    "versions": versions,
    "address": address,
    "ports": ports,
    "page": page,
    "shared memory": shared_memory,
    "disk": disk,
    "GPUs": gpus,
    "round trip": round_trips,
    "Ray authentication": authentication,
    "cluster": cluster,
}


def examine(found: Found) -> list[Line]:
    """One line for each check, in their order."""
    return [check(found) for check in checks.values()]


def _trips(found: Found) -> list[tuple[str, Any]]:
    return sorted(found.round_trip_s.items())


def _number(version: str) -> tuple[int, int]:
    parts = version.split("+")[0].split(".")
    return int(parts[0]), int(parts[1])


def _bytes(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"
