"""Rank processes: workers in plain processes of this machine, one pinned thread each, for benchmarks without Ray."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from zellige_ray.actors.messages import Decision, Epoch, Invitation, Member
from zellige_ray.config import RunConfig
from zellige_ray.errors import PoolError

START_TIMEOUT_S, CALL_TIMEOUT_S = 120.0, 180.0
STORE_TIMEOUT_S = 60.0
FIRST, AUTOGROUP = -20, Path("/proc/self/autogroup")


@dataclass(frozen=True, slots=True)
class Timed:
    """What a call gave, when it began and ended (seconds of the machine's monotonic clock), processor seconds."""

    value: Any
    began: float
    ended: float
    cpu_s: float


class RankProcesses:
    """Workers of one epoch; a context manager, which ends them.

    environment: of the processes. pinned: each on one processor, in turn.
    """

    def __init__(
        self, size: int, config: RunConfig, cache_folder: str, environment: dict[str, str], pinned: bool = True
    ) -> None:
        from torch.distributed import TCPStore

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        spawn = multiprocessing.get_context("spawn")
        before = {k: os.environ.get(k) for k in environment}
        os.environ.update(environment)
        self._pipes: list[Connection] = []
        self._processes = []
        try:
            for rank in range(size):
                ours, theirs = spawn.Pipe()
                args = (theirs, rank, config, cache_folder, self._store.port, pinned)
                process = spawn.Process(target=_serve, args=args, daemon=True, name=f"rank-{rank}")
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
        finally:
            for k, v in before.items():
                os.environ.pop(k) if v is None else os.environ.update({k: v})
        self.steps = 0  # that were committed
        members: list[Member] = [x.value for x in self._call("setup", [(None,)] * size, START_TIMEOUT_S)]
        self.epoch = Epoch(0, tuple(members))
        self.call("join", [(Invitation(0, r, (0,) * size, size, None, Decision(0)),) for r in range(size)])

    def call(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Timed]:
        """The method of every worker with its arguments, at once. Raises PoolError for a broken reply or a death."""
        return self._call(method, args, CALL_TIMEOUT_S)

    def _call(self, method: str, args: Sequence[tuple[Any, ...]], timeout_s: float) -> list[Timed]:
        for pipe, mine in zip(self._pipes, args, strict=True):
            pipe.send((method, mine))
        out: list[Timed] = []
        end = time.monotonic() + timeout_s
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, end - time.monotonic())):
                raise PoolError(f"rank {rank} did not answer {method} within {timeout_s:.0f} s")
            try:
                answer = pipe.recv()
            except EOFError:
                raise PoolError(f"the process of rank {rank} died in {method}") from None
            if isinstance(answer, BaseException):
                raise PoolError(f"rank {rank} failed in {method}: {type(answer).__name__}: {answer}") from answer
            out.append(answer)
        return out

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, where: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()  # a worker whose pipe ends leaves
        for process in self._processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()


def _go_first() -> None:
    """Before all other work of the machine, where that is allowed: a session of its own, as Linux shares by session."""
    with contextlib.suppress(OSError):
        os.setsid()
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
        AUTOGROUP.write_text(str(FIRST), encoding="utf-8")


def _serve(pipe: Connection, rank: int, config: RunConfig, cache_folder: str, port: int, pinned: bool) -> None:
    """Answers calls until the pipe closes."""
    if pinned:
        _go_first()
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[rank % len(allowed)]})
    import torch
    from torch.distributed import TCPStore

    from zellige_ray.actors.worker import Worker

    torch.set_num_threads(1)

    def connect(_store: Any) -> Any:
        from datetime import timedelta

        return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=STORE_TIMEOUT_S))

    worker = Worker(f"rank-{rank}", "this machine", config, cache_folder, connect)
    while True:
        try:
            method, args = pipe.recv()
        except (EOFError, OSError):
            worker.close()
            return
        try:
            began, cpu = time.monotonic(), time.process_time()
            value = getattr(worker, method)(*args)
            pipe.send(Timed(value, began, time.monotonic(), time.process_time() - cpu))
        except Exception as fault:  # noqa: BLE001  carried to the caller
            pipe.send(fault)
