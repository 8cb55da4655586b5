"""A pool of real workers as threads of this process: real models, real gloo groups, no Ray."""

from __future__ import annotations

import concurrent.futures as futures
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.distributed import HashStore

from zellige_ray.actors.messages import Member, Reply, Standing
from zellige_ray.actors.pool import Adopted, Gathered
from zellige_ray.actors.worker import Worker
from zellige_ray.config import RunConfig

DEAD = "the thread was killed"


class Killed(BaseException):
    """Raised inside a worker's thread: nothing of it goes on."""


class LocalPool:
    """See `Pool`. kill: called with (worker, method, its nth call) before it runs; True kills it there.

    node_of: where the nth worker runs. draining: what `leaving` says.
    """

    def __init__(
        self,
        config: RunConfig,
        cache_folder: str,
        kill: Callable[[str, str, int], bool] = lambda w, m, n: False,
        spares: int = 0,
        node_of: Callable[[int], str] = lambda number: "node",
    ) -> None:
        self._config, self._cache_folder, self._kill, self.spares = config, cache_folder, kill, spares
        self._node_of = node_of
        self.draining: dict[str, str] = {}
        self._stores: dict[int, Any] = {}
        self._calls: dict[tuple[str, str], int] = {}
        self._count = self._asked = 0
        self.workers: dict[str, Worker] = {}
        self._lanes: dict[str, futures.ThreadPoolExecutor] = {}

    def _spawn(self, checkpoint: str | None) -> Member:
        name, node, self._count = f"worker-{self._count}", self._node_of(self._count), self._count + 1
        worker = Worker(name, node, self._config, self._cache_folder, lambda store: store)
        self.workers[name] = worker
        self._lanes[name] = futures.ThreadPoolExecutor(1, thread_name_prefix=name)
        return self._lanes[name].submit(worker.setup, checkpoint).result(timeout=60)

    def start(
        self, count: int, min_count: int, checkpoint: str | None, timeout_s: float, died: Callable[[str, str], None]
    ) -> list[Member]:
        return [self._spawn(checkpoint) for _ in range(count)]

    def request(self, checkpoint: str | None) -> None:
        self._asked += 1

    def requested(self) -> int:
        return self._asked

    def failed(self) -> dict[str, str]:
        return {}

    def leaving(self) -> dict[str, str]:
        return dict(self.draining)

    def room(self) -> str:
        return "free now: nothing"

    def adopt(self, expected: Sequence[str], checkpoint: str | None) -> Adopted:
        """Asks who is there, after a driver that was lost with its memory; `revive` comes first."""
        asked = {w: self.workers[w].standing() for w in self._lanes}
        standings = {w: s for w, s in asked.items() if isinstance(s, Standing)}
        lost = {w: DEAD for w in expected if w not in self._lanes}
        return Adopted(standings, max(self._stores, default=-1), lost)

    def arrived(self, wait_s: float = 0.0) -> list[Member]:
        num = min(self._asked, self.spares)
        self._asked, self.spares = self._asked - num, self.spares - num
        return [self._spawn(None) for _ in range(num)]

    def store(self, epoch: int) -> Any:
        return self._stores.setdefault(epoch, HashStore())

    def submit(self, method: str, args: Mapping[str, Sequence[Any]]) -> Any:
        return {w: self._lanes[w].submit(self._run, w, method, tuple(a)) for w, a in args.items()}

    def _run(self, name: str, method: str, args: tuple[Any, ...]) -> Any:
        worker = self.workers[name]
        nth = self._calls[(name, method)] = self._calls.get((name, method), 0) + 1
        if self._kill(name, method, nth):
            worker.close()
            raise Killed
        try:
            return getattr(worker, method)(*args)
        except Killed:
            worker.close()
            raise

    def gather(self, call: Any, timeout_s: float, first_fault: bool = True) -> Gathered:
        replies: dict[str, Reply] = {}
        lost: dict[str, str] = {}
        end, waiting = time.monotonic() + timeout_s, dict(call)
        while waiting and time.monotonic() < end:
            futures.wait(waiting.values(), timeout=0.2, return_when=futures.FIRST_COMPLETED)
            for worker in [w for w, f in waiting.items() if f.done()]:
                try:
                    value = waiting.pop(worker).result()
                    replies[worker] = value if isinstance(value, Reply) else Reply(worker, -1, "ok", value)
                except Killed:
                    lost[worker] = DEAD
            if first_fault and (lost or any(r.status == "broken" for r in replies.values())):
                break
        return Gathered(replies, tuple(waiting), lost)

    def cancel(self, workers: Sequence[str], epoch: int) -> None:
        for worker in workers:
            self.workers[worker].cancel(epoch)

    def remove(self, worker: str) -> None:
        self.workers[worker].close()
        self._lanes.pop(worker).shutdown(wait=False)

    def close(self) -> None:
        for worker in list(self._lanes):
            self.remove(worker)
