"""Rehearsal: ranks as threads of one process over real gloo, for tests, benchmarks and users' own checks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from zellige_ray.attention.comm import Comm

T = TypeVar("T")


def run_ranks(
    size: int,
    body: Callable[[int, Comm], T],
    timeout_s: float = 60.0,
    store: Any = None,
    epoch: int = 0,
    max_groups: int = 8,
) -> list[T]:
    """`body(rank, comm)` on every rank at once; the results by rank.

    A rank that raises cancels the others; the first fault that is not a consequence of that is raised. store: shared by
    all ranks, a fresh HashStore by default.
    """
    from torch.distributed import HashStore

    store = HashStore() if store is None else store
    results: list[Any] = [None] * size
    faults: list[BaseException] = []
    comms: list[Comm | None] = [None] * size
    stop = threading.Event()

    def run(rank: int) -> None:
        try:
            comm = comms[rank] = Comm.create(store, epoch, rank, size, "gloo", timeout_s, stop.is_set, max_groups)
            results[rank] = body(rank, comm)
        except BaseException as fault:  # noqa: BLE001  carried to the caller
            faults.append(fault)
            stop.set()
            for other in comms:
                if other is not None:
                    other.cancel()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank-{rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for comm in comms:
        if comm is not None:
            comm.close()
    if faults:
        raise faults[0]
    return results
