"""Rank processes: the workers of one epoch in plain processes, called all at once, each call with its times."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from zellige_ray.actors.messages import Decision, Epoch, Invitation
from zellige_ray.actors.process_pool import ProcessPool
from zellige_ray.actors.process_worker import Timed
from zellige_ray.config import RunConfig
from zellige_ray.errors import PoolError

START_TIMEOUT_S, CALL_TIMEOUT_S = 120.0, 180.0


class RankProcesses:
    """A `ProcessPool` whose workers have met in epoch 0; a context manager, which ends them.

    pinned, first: see `ProcessPool`.
    """

    def __init__(
        self, size: int, config: RunConfig, cache_folder: str, pinned: bool = True, first: bool = False
    ) -> None:
        self.steps = 0  # that were committed
        self.cache_folder = Path(cache_folder)
        self._scratch = tempfile.TemporaryDirectory(prefix="zellige-ranks-")
        scratch = Path(self._scratch.name)
        self._pool = ProcessPool(config, Path(cache_folder), scratch, linked=False, first=first, pinned=pinned)
        try:
            members = self._pool.start(size, size, None, START_TIMEOUT_S, lambda worker, why: None)
            self.epoch, store = Epoch(0, tuple(members)), self._pool.store(0)
            nodes = self.epoch.node_of_rank()
            self.call("join", [(Invitation(0, r, nodes, size, store, Decision(0)),) for r in range(size)])
        except BaseException:
            self.close()
            raise

    def call(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Timed]:
        """The method of every worker with its arguments, at once. Raises PoolError for a broken reply or a death."""
        call = self._pool.submit(method, dict(zip(self.epoch.workers, args, strict=True)))
        gathered = self._pool.gather(call, CALL_TIMEOUT_S)
        if not gathered.complete:
            raise PoolError(f"{method} did not come back whole within {CALL_TIMEOUT_S:.0f} s: {gathered.why()}")
        return [self._pool.last[worker] for worker in self.epoch.workers]

    def close(self) -> None:
        """Ends the processes."""
        self._pool.close()
        self._scratch.cleanup()

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
