"""The doctor's probes: they look at this machine, change nothing, and never wait longer than their time-out."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from zellige_ray.actors.network import unreachable
from zellige_ray.commands.doctor_checks import FLOORS, PORTS, Found, Gpu, Page
from zellige_ray.config import PageConfig

TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 3.0
OUTSIDE = ("192.0.2.1", 9)  # reserved for documents; a UDP socket that is connected sends nothing


def look(folder: Path, settings: PageConfig) -> Found:
    """All that the doctor judges by. folder: where runs would be written. settings: of the live page."""
    found_gpus = _gpus()
    return Found(
        python=sys.version_info[:3],
        versions={name: _version(name) for name in FLOORS},
        hostname=socket.gethostname(),
        resolved=_resolved(),
        routable=_routable(),
        ports_taken=tuple(port for port in PORTS if _taken(port)),
        shm_bytes=_total(Path("/dev/shm")),
        disk_free_bytes=_free(folder),
        folder=str(folder),
        gpus=found_gpus,
        round_trip_s=_round_trips(len(found_gpus)),
        page=_page(settings),
        environment=dict(os.environ),
        token_file=Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").is_file(),
        unreachable=unreachable(os.environ.get("RAY_ADDRESS"), CONNECT_TIMEOUT_S),
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _resolved() -> tuple[str, ...]:
    try:
        answers = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(a[4][0]) for a in answers))


def _routable() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(OUTSIDE)
            address = str(probe.getsockname()[0])
        except OSError:
            return None
    return None if address.startswith("127.") else address


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _page(settings: PageConfig) -> Page:
    """Listens for a moment where a run would."""
    from zellige_ray.monitor.page.server import listen

    if not settings.enabled:
        return Page("", settings.port, settings.port)
    try:
        with listen(settings.host, settings.port) as one:
            return Page(settings.host, settings.port, int(one.getsockname()[1]))
    except OSError as fault:
        return Page(settings.host, settings.port, str(fault.strerror or fault))


def _total(folder: Path) -> int | None:
    return shutil.disk_usage(folder).total if folder.is_dir() else None


def _free(folder: Path) -> int | None:
    near = next((p for p in (folder, *folder.absolute().parents) if p.exists()), None)
    try:
        return shutil.disk_usage(near).free if near is not None else None
    except OSError:
        return None


def _gpus() -> tuple[Gpu, ...]:
    try:
        import torch
    except ImportError:
        return ()
    out = []
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(i)
        out.append(Gpu(torch.cuda.get_device_name(i), total, free))
    return tuple(out)


def _round_trips(num_gpus: int) -> dict[str, float | str]:
    backends: list[Literal["gloo", "nccl"]] = ["gloo", "nccl"] if num_gpus > 1 else ["gloo"]
    return {backend: round_trip(backend) for backend in backends}


def round_trip(backend: Literal["gloo", "nccl"]) -> float | str:
    """Seconds of an all-reduce between two ranks, threads of this process; or what went wrong."""
    try:
        from torch.distributed import HashStore

        store: Any = HashStore()
    except ImportError as fault:
        return f"torch can't be imported: {fault}"
    times: list[float] = []
    faults: list[str] = []

    def rank(number: int) -> None:
        try:
            times.append(_reduce(backend, store, number))
        except Exception as fault:  # noqa: BLE001  it is what the doctor reports
            faults.append(f"{type(fault).__name__}: {fault}")

    threads = [threading.Thread(target=rank, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    if faults:
        return faults[0].splitlines()[0]
    return min(times) if len(times) == 2 else f"no answer within {2 * TIMEOUT_S:g} s"


def _reduce(backend: Literal["gloo", "nccl"], store: Any, number: int) -> float:
    import torch

    from zellige_ray.attention.comm import Comm

    device = torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(number)
        device = torch.device("cuda", number)
    comm = Comm.create(store, 0, number, 2, backend, TIMEOUT_S)
    try:
        best = float("inf")
        for _ in range(5):
            value = torch.ones(1024, device=device)
            start = time.perf_counter()
            comm.all_reduce(value).wait()
            total = float(value.sum())  # waits for the device
            best = min(best, time.perf_counter() - start)
            if total != 2048:
                raise ArithmeticError(f"an all-reduce of ones over 2 ranks gave {total / 1024:g}")
        return best
    finally:
        comm.close()
