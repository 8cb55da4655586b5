"""The crew: one call to all live workers, repeated in a new epoch until everybody who is left has answered well."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import zellige_ray
from zellige_ray.actors.membership import Membership
from zellige_ray.actors.messages import Decision, Epoch, Member, Reply
from zellige_ray.actors.pool import Adopted, Gathered, Pool
from zellige_ray.config import WorkersConfig
from zellige_ray.errors import PoolError
from zellige_ray.monitor.events import MembershipEvent, NoteEvent
from zellige_ray.words import counted

MAX_ATTEMPTS = 5
MAX_FAILED = 5  # workers in a row that could not be set up; then none is asked for any more
WAIT_POLL_S, SAY_EVERY_S = 0.2, 30.0

Args = Callable[[Epoch], Mapping[str, Sequence[Any]]]
Judge = Callable[[Epoch, Gathered], bool]
Notice = Callable[[MembershipEvent | NoteEvent], None]


class Crew:
    """Live workers under the present epoch. `decided` says the last decision; every epoch that is formed carries it."""

    def __init__(
        self,
        pool: Pool,
        settings: WorkersConfig,
        decided: Callable[[], Decision],
        notice: Notice,
        formed: Callable[[Epoch], None],
        stopping: Callable[[], bool] = lambda: False,
        parts: bool = False,
    ) -> None:
        """stopping: nobody wants the run to go on, so that it need not wait for workers.

        parts: a worker may hold what nobody else does, and hands it over before it leaves.
        """
        self.replans, self._stopping, self._parts = 0, stopping, parts
        self._pool, self._settings, self._decided, self._notice = pool, settings, decided, notice
        self._membership = Membership(pool, settings, self._left, self._wait_for, formed)
        self._gone: list[tuple[str, str]] = []
        self._model = ""
        self._num_failed = 0
        self._stuck: frozenset[str] = frozenset()

    @property
    def epoch(self) -> Epoch:
        return self._membership.epoch

    def start(self, count: int, checkpoint: str | None) -> None:
        """Starts workers and forms the first epoch; raises PoolError with fewer than `workers.min`."""
        timeout_s = self._settings.start_timeout_s
        members = self._pool.start(count, self._settings.min, checkpoint, timeout_s, self._died_early)
        self._membership.form(self._admit(members), self._decided())

    def restart(self, checkpoint: str | None, ready: Sequence[Member] = ()) -> None:
        """Nobody holds the state: workers, those that are `ready` and newcomers, take it from `checkpoint` or the seed.

        Waits for `workers.min` of them.
        """
        members = self._admit([*ready, *self._pool.arrived()])
        if len(members) < self._settings.min:
            members += self._wait_for(self._settings.min - len(members))
        call = self._pool.submit("setup", {m.worker: (checkpoint,) for m in members})
        gathered = self._pool.gather(call, self._settings.start_timeout_s, first_fault=False)
        for worker, reason in {**gathered.lost, **dict.fromkeys(gathered.missing, "was not set up in time")}.items():
            self._pool.remove(worker)
            self._left(worker, reason)
        ready = [m for m in members if m.worker in gathered.replies]
        try:
            self._membership.form(ready, self._decided())
        finally:
            self._tell_gone(0.0, 0)

    def adopt(self, expected: Sequence[str], checkpoint: str | None) -> Adopted:
        """The workers of a driver that is no more, as they stand; every epoch so far is over for them."""
        adopted = self._pool.adopt(expected, checkpoint)
        self._membership.resume(adopted.epoch)
        self._pool.cancel(list(adopted.standings), adopted.epoch + 1)
        self._model = next((s.member.model for s in adopted.standings.values()), "")
        for worker, reason in adopted.lost.items():
            self._gone.append((worker, reason))
        for _ in range(int(self._settings.count) - len(adopted.standings) - self._pool.requested()):
            self._pool.request(None)
        return adopted

    def take_over(self, holders: Sequence[Member], newcomers: Sequence[Member]) -> None:
        """Forms the first epoch of a driver that started again."""
        start = time.monotonic()
        try:
            self._membership.form(holders, self._decided(), newcomers)
        finally:
            self._tell_gone(time.monotonic() - start, 0)

    def all(
        self,
        method: str,
        args: Args,
        meanwhile: Callable[[Epoch], None] | None = None,
        num_samples: int = 0,
        judge: Judge = lambda epoch, gathered: gathered.complete,
    ) -> Mapping[str, Reply]:
        """Calls `method` on every worker with `args` of the epoch; broken, it is called again on who is left.

        meanwhile: work for this thread while they compute. num_samples: what is run again after a break. judge: does
        what came back count? Raises PoolError with too few workers, or when the same workers fail MAX_ATTEMPTS times;
        CorruptSamples when a sample can't be read, WorkersStarved when memory did not suffice; an error of Zellige
        inside a worker as it is.
        """
        failures = 0
        while True:
            start, size, epoch = time.monotonic(), self.epoch.size, self.epoch
            call = self._pool.submit(method, args(self.epoch))
            if meanwhile is not None:
                meanwhile(self.epoch)
            gathered = self._pool.gather(call, self._settings.step_timeout_s)
            if judge(self.epoch, gathered):
                return gathered.replies
            self._regroup(method, call, gathered, start, num_samples)
            if gathered.corrupt:
                raise CorruptSamples(gathered.corrupt, gathered.why())
            if gathered.starved:
                raise WorkersStarved(epoch, gathered.starved)
            failures = 0 if self.epoch.size < size else failures + 1
            if failures >= MAX_ATTEMPTS:
                raise PoolError(f"{method} failed {MAX_ATTEMPTS} times with the same workers: {gathered.why()}")

    def one(self, rank: int, method: str, args: Sequence[Any]) -> tuple[str, Any]:
        """Calls one worker, by its rank modulo the size; when it is lost, whoever has its rank afterwards.

        Returns the worker's name and its answer.
        """
        for _ in range(MAX_ATTEMPTS):
            start, worker = time.monotonic(), self.epoch.workers[rank % self.epoch.size]
            call = self._pool.submit(method, {worker: args})
            gathered = self._pool.gather(call, self._settings.step_timeout_s)
            if gathered.complete:
                return worker, gathered.replies[worker].value
            self._regroup(method, call, gathered, start, 0)
        raise PoolError(f"{method} failed on {MAX_ATTEMPTS} workers in a row: {gathered.why()}")

    def ask(self, worker: str, method: str, timeout_s: float, args: Sequence[Any] = ()) -> Any | None:
        """Asks a worker that may be gone by now; None when it is."""
        gathered = self._pool.gather(self._pool.submit(method, {worker: args}), timeout_s)
        return gathered.replies[worker].value if worker in gathered.replies else None

    def between_steps(self) -> bool:
        """At a boundary: workers of draining nodes leave, newcomers come in with their state from a live peer.

        False when workers ought to leave and too few would be left: then a checkpoint is due, before they go.
        """
        leaving, arrived = self._pool.leaving(), self._admit(self._pool.arrived())
        self._replace_failed()
        leaving = {w: reason for w, reason in leaving.items() if w in self.epoch.workers}
        stay = [m for m in self.epoch.members if m.worker not in leaving]
        if leaving and (not stay or len(stay) + len(arrived) < self._settings.min):
            if self._stuck != frozenset(leaving):
                self._stuck = frozenset(leaving)
                names = ", ".join(sorted(leaving))
                self._notice(NoteEvent("warning", f"{names} should leave, but workers.min would not be met: they stay"))
                return False
            leaving, stay = {}, list(self.epoch.members)
        if arrived or leaving:
            self._exchange(stay, arrived, leaving)
        return True

    def close(self) -> None:
        """Ends every worker."""
        self._pool.close()

    def _exchange(self, stay: list[Member], arrived: list[Member], leaving: Mapping[str, str]) -> None:
        start = time.monotonic()
        try:
            if leaving and self._parts:
                gone = [m for m in self.epoch.members if m.worker in leaving]
                self._membership.hand_over(stay, self._decided(), arrived, gone)
            else:
                self._membership.form(stay, self._decided(), arrived)
            for worker, reason in leaving.items():
                self._pool.remove(worker)
                self._left(worker, reason)
        finally:
            seconds = time.monotonic() - start
            for member in arrived:
                if member.worker in self.epoch.workers:
                    reason = f"process {member.pid} took over step {self._decided().step} from a peer"
                    self._changed("joined", member.worker, reason, seconds, 0)
                    seconds = 0.0
            self._tell_gone(seconds, 0)

    def _admit(self, members: list[Member]) -> list[Member]:
        """Those that run the same package and model as everybody; the others are refused by name."""
        admitted = []
        for member in members:
            self._num_failed = 0
            self._model = self._model or member.model
            here = (zellige_ray.__version__, self._model)
            if (member.version, member.model) == here:
                admitted.append(member)
                continue
            self._pool.remove(member.worker)
            text = f"{member.worker} on node {member.node[:8]} is refused: it runs zellige_ray {member.version} with "
            text += f"model {member.model}, this run is {here[0]} with {here[1]}; install the same version there"
            self._notice(NoteEvent("warning", text))
        return admitted

    def _wait_for(self, num: int) -> list[Member]:
        """Newcomers, once there are `num`; says why it waits. Raises PoolError after `workers.wait_timeout_s`."""
        start, said, members = time.monotonic(), -SAY_EVERY_S, list[Member]()
        while len(members) < num:
            if self._stopping():
                raise PoolError("asked to stop while it waited for workers")
            waited = time.monotonic() - start
            alive = self.epoch.size + len(members)
            if waited > self._settings.wait_timeout_s:
                raise PoolError(
                    f"{counted(alive, 'live worker')} left, {self._settings.min} needed (workers.min); waited "
                    f"{waited:.0f} s (workers.wait_timeout_s), {self._pool.room()}"
                )
            if waited - said >= SAY_EVERY_S:
                said = waited
                self._notice(
                    NoteEvent(
                        "warning",
                        f"waiting for workers: {alive} alive, workers.min is {self._settings.min}, "
                        f"{self._pool.requested()} asked for, {self._pool.room()}; "
                        f"up to {self._settings.wait_timeout_s:.0f} s",
                    )
                )
            members += self._admit(self._pool.arrived(WAIT_POLL_S))
            self._replace_failed()
        return members

    def _died_early(self, worker: str, reason: str) -> None:
        self._num_failed += 1
        text = f"{worker} died while it was set up: {reason}"
        if self._num_failed >= MAX_FAILED:
            raise PoolError(f"{text}; it is the {MAX_FAILED}th that did: see the workers' logs for the cause")
        self._notice(NoteEvent("warning", f"{text}; another is asked for"))

    def _replace_failed(self) -> None:
        for worker, reason in self._pool.failed().items():
            self._num_failed += 1
            more = self._num_failed < MAX_FAILED
            end = "another is asked for" if more else f"the {MAX_FAILED}th in a row, none is asked for any more"
            self._notice(NoteEvent("warning", f"{worker} could not be set up: {reason}; {end}"))
            if more:
                self._pool.request(None)

    def _regroup(self, method: str, call: Any, gathered: Gathered, start: float, num_samples: int) -> None:
        self.replans += 1
        try:
            self._membership.break_up(call, gathered, self._decided())
        finally:
            if not self._gone and not gathered.corrupt and not gathered.starved:
                self._notice(NoteEvent("warning", f"{method} was broken and is run again: {gathered.why()}"))
            self._tell_gone(time.monotonic() - start, num_samples)

    def _left(self, worker: str, reason: str) -> None:
        self._gone.append((worker, reason))
        self._pool.request(None)  # a replacement; its state comes from its peers

    def _tell_gone(self, seconds: float, num_samples: int) -> None:
        """One event each; what several deaths at once cost is told with the first."""
        for worker, reason in self._gone:
            self._changed("left", worker, reason, seconds, num_samples)
            seconds, num_samples = 0.0, 0
        self._gone.clear()

    def _changed(
        self, change: Literal["joined", "left"], worker: str, reason: str, seconds: float, num_samples: int
    ) -> None:
        step = self._decided().step + 1
        self._notice(MembershipEvent(step, self.epoch.number, change, worker, reason, seconds, num_samples))


class CorruptSamples(Exception):  # noqa: N818  (a turn of events, not a fault)
    """Samples that a worker could not read; the crew has regrouped and is ready for another batch."""

    def __init__(self, ids: tuple[str, ...], why: str) -> None:
        super().__init__(why)
        self.ids = ids


class WorkersStarved(Exception):  # noqa: N818  (a turn of events, not a fault)
    """Workers ran out of memory; the crew has regrouped and is ready for another plan. epoch: in which it happened."""

    def __init__(self, epoch: Epoch, workers: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{w}: {said}" for w, said in workers.items()))
        self.epoch, self.workers = epoch, workers
