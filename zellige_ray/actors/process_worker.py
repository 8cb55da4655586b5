"""A worker in a plain process: orders come over a socket, one after the other; `cancel` overtakes them.

`ProcessPool` starts it. When the other end of the socket is closed, whatever the reason, the process ends at once:
nothing outlives whoever started it.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from zellige_ray.config import RunConfig

HELLO = "hello"
HIGHEST, AUTOGROUP = -20, Path("/proc/self/autogroup")


@dataclass(frozen=True, slots=True)
class Setting:
    """Who a worker is. core: the CPU that it is pinned to, None for none. first: it runs before all other work."""

    name: str
    config: RunConfig
    cache_folder: str
    core: int | None
    first: bool


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer, when its order began and ended (seconds of the machine's monotonic clock), processor seconds."""

    value: Any
    began: float
    ended: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Raised:
    """The answer to an order that raised."""

    fault: BaseException


def main(fd: int) -> None:
    """Says hello, waits for its setting, then answers orders until the socket closes."""
    connection = Connection(fd)
    connection.send(HELLO)
    try:
        setting: Setting = connection.recv()
    except EOFError:
        return
    if setting.core is not None:
        os.sched_setaffinity(0, {setting.core})
    if setting.first:
        _come_first()
    import torch

    from zellige_ray.actors.worker import Worker

    torch.set_num_threads(setting.config.workers.threads)
    worker = Worker(setting.name, "here", setting.config, setting.cache_folder, _connect)
    orders: queue.SimpleQueue[tuple[str, Sequence[Any]]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, worker, orders), name="zellige-orders", daemon=True).start()
    while True:
        method, args = orders.get()
        began, cpu = time.monotonic(), time.process_time()
        answer: Timed | Raised
        try:
            value = getattr(worker, method)(*args)
            answer = Timed(value, began, time.monotonic(), time.process_time() - cpu)
        except BaseException as fault:  # noqa: BLE001  carried to whoever gathers
            answer = Raised(fault)
        connection.send(answer)


def _come_first() -> None:
    """Raises this process above all others; Linux weighs sessions against each other where it groups by them."""
    os.setpriority(os.PRIO_PROCESS, 0, HIGHEST)
    if AUTOGROUP.exists():
        AUTOGROUP.write_text(str(HIGHEST))


def _listen(connection: Connection, worker: Any, orders: queue.SimpleQueue[tuple[str, Sequence[Any]]]) -> None:
    try:
        while True:
            method, args = connection.recv()
            if method == "cancel":
                worker.cancel(*args)
            else:
                orders.put((method, args))
    except (EOFError, OSError):
        os._exit(0)  # work in flight may wait for a peer that is gone as well


def _connect(path: str) -> Any:
    from torch.distributed import FileStore

    return FileStore(path, -1)
