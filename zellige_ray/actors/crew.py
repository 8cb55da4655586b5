"""The crew: one call to all live workers, repeated in a new epoch until everybody who is left has answered well."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from zellige_ray.actors.membership import Membership
from zellige_ray.actors.messages import Decision, Epoch, Reply
from zellige_ray.actors.pool import Gathered, Pool
from zellige_ray.config import WorkersConfig
from zellige_ray.errors import PoolError
from zellige_ray.monitor.events import MembershipEvent, NoteEvent

MAX_ATTEMPTS = 5

Args = Callable[[Epoch], Mapping[str, Sequence[Any]]]
Notice = Callable[[MembershipEvent | NoteEvent], None]


class Crew:
    """Live workers under the present epoch. `decided` is the last decision; every epoch that is formed carries it."""

    def __init__(self, pool: Pool, settings: WorkersConfig, decided: Decision, notice: Notice) -> None:
        self.decided, self.replans = decided, 0
        self._pool, self._settings, self._notice = pool, settings, notice
        self._membership = Membership(pool, settings, self._left)
        self._gone: list[tuple[str, str]] = []

    @property
    def epoch(self) -> Epoch:
        return self._membership.epoch

    def start(self, count: int, checkpoint: str | None) -> None:
        """Starts workers and forms the first epoch; raises PoolError with fewer than `workers.min`."""
        members = self._pool.start(count, self._settings.min, checkpoint, self._settings.start_timeout_s)
        self._membership.form(members, self.decided)

    def all(
        self, method: str, args: Args, meanwhile: Callable[[Epoch], None] | None = None, num_samples: int = 0
    ) -> Mapping[str, Reply]:
        """Calls `method` on every worker with `args` of the epoch; broken, it is called again on who is left.

        meanwhile: work for this thread while they compute. num_samples: what is run again after a break. Raises
        PoolError with too few workers, or when the same workers fail MAX_ATTEMPTS times; an error of Zellige inside a
        worker as it is.
        """
        failures = 0
        while True:
            start, size = time.monotonic(), self.epoch.size
            call = self._pool.submit(method, args(self.epoch))
            if meanwhile is not None:
                meanwhile(self.epoch)
            gathered = self._pool.gather(call, self._settings.step_timeout_s)
            if gathered.complete:
                return gathered.replies
            self._regroup(method, call, gathered, start, num_samples)
            failures = 0 if self.epoch.size < size else failures + 1
            if failures >= MAX_ATTEMPTS:
                raise PoolError(f"{method} failed {MAX_ATTEMPTS} times with the same workers: {gathered.why()}")

    def one(self, rank: int, method: str, args: Sequence[Any]) -> Any:
        """Calls one worker, by its rank modulo the size; when it is lost, whoever has its rank afterwards."""
        for _ in range(MAX_ATTEMPTS):
            start, worker = time.monotonic(), self.epoch.workers[rank % self.epoch.size]
            call = self._pool.submit(method, {worker: args})
            gathered = self._pool.gather(call, self._settings.step_timeout_s)
            if gathered.complete:
                return gathered.replies[worker].value
            self._regroup(method, call, gathered, start, 0)
        raise PoolError(f"{method} failed on {MAX_ATTEMPTS} workers in a row: {gathered.why()}")

    def take_in(self) -> None:
        """Takes newcomers in at a step boundary; they get their state from a live peer."""
        arrived = self._pool.arrived()
        if not arrived:
            return
        start = time.monotonic()
        self._membership.form(self.epoch.members, self.decided, arrived)
        for member in arrived:
            if member.worker in self.epoch.workers:
                self._changed("joined", member.worker, f"took over step {self.decided.step} from a peer", start, 0)
        self._tell_gone(start, 0)

    def close(self) -> None:
        """Ends every worker."""
        self._pool.close()

    def _regroup(self, method: str, call: Any, gathered: Gathered, start: float, num_samples: int) -> None:
        self.replans += 1
        try:
            self._membership.break_up(call, gathered, self.decided)
        finally:
            if not self._gone:
                self._notice(NoteEvent("warning", f"{method} was broken and is run again: {gathered.why()}"))
            self._tell_gone(start, num_samples)

    def _left(self, worker: str, reason: str) -> None:
        self._gone.append((worker, reason))
        self._pool.request(None)  # a replacement; its state comes from its peers

    def _tell_gone(self, start: float, num_samples: int) -> None:
        for worker, reason in self._gone:
            self._changed("left", worker, reason, start, num_samples)
        self._gone.clear()

    def _changed(
        self, change: Literal["joined", "left"], worker: str, reason: str, start: float, num_samples: int
    ) -> None:
        seconds = time.monotonic() - start
        self._notice(
            MembershipEvent(self.decided.step + 1, self.epoch.number, change, worker, reason, seconds, num_samples)
        )
