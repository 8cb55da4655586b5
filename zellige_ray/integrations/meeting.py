"""The meeting: all workers come to it once per step; it decides whether the step counts, and who goes on with whom.

A plain class under one lock, so that every order of arrivals and deaths can be tried with threads. One call is vote and
step boundary in one: a worker arrives with its vote, and leaves with a verdict that is the same for all.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from zellige_ray.errors import PoolError


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker as the planner sees it. Units: bytes."""

    worker: str
    node: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a worker brings. epoch, step: where it stands, -1 before it holds any state. ok: gradients are reduced."""

    seat: Seat
    epoch: int
    step: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all of them take away. step: the last one that counts. source: rank whose state the others take, if any do.

    report: the step counts and no place is empty, so that `ray.train.report` finds everybody. over: a newcomer finds
    that the others have finished.
    """

    commit: bool
    step: int
    epoch: int
    seats: tuple[Seat, ...]
    source: int | None
    report: bool
    over: bool = False


class Meeting:
    """size: workers that begin together; later ones are admitted whenever the others meet."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._door = threading.Condition()
        self._arrived: dict[str, Arrival] = {}
        self._lost: set[str] = set()
        self._turn, self._over = 0, False
        self._verdict = Verdict(False, 0, -1, (), None, False)
        self._fault: PoolError | None = None

    @property
    def epoch(self) -> int:
        return self._verdict.epoch

    def meet(self, arrival: Arrival, timeout_s: float) -> Verdict:
        """Waits for the others. Raises PoolError when removed, after the time-out, or when all state is lost."""
        with self._door:
            worker, turn = arrival.seat.worker, self._turn
            if worker in self._lost:
                raise PoolError(f"worker {worker} was removed: it did not answer in time")
            self._arrived[worker] = arrival
            self._decide()
            if not self._door.wait_for(lambda: self._turn != turn or worker in self._lost, timeout_s):
                self._arrived.pop(worker, None)
                missing = sorted(set(self._members()) - set(self._arrived) - {worker}) or "others to begin with"
                raise PoolError(f"step {self._verdict.step + 1}: {missing} did not come in {timeout_s:g} s (timeout_s)")
            if self._fault is not None:
                raise self._fault
            if worker in self._lost:
                raise PoolError(f"worker {worker} was removed: it did not answer in time")
            return self._verdict

    def lose(self, worker: str, finished: bool = False) -> bool:
        """A worker is gone; whether it had a part in the present epoch. finished: it came to the end of its script."""
        with self._door:
            self._over |= finished
            known = worker not in self._lost and worker in self._members()
            self._lost.add(worker)
            self._arrived.pop(worker, None)
            self._decide()
            self._door.notify_all()
            return known

    def _members(self) -> list[str]:
        return [seat.worker for seat in self._verdict.seats]

    def _decide(self) -> None:
        last, members = self._verdict, self._members()
        living = [w for w in members if w not in self._lost]
        if not living and self._over:
            self._end_turn(replace(last, over=True))
            return
        if not living and len(self._arrived) < self._size:
            return
        if not self._arrived or any(w not in self._arrived for w in living):
            return
        came = self._arrived
        commit = bool(living) and living == members and all(came[w].ok and came[w].epoch == last.epoch for w in members)
        step = last.step + commit
        newcomers = [w for w in came if w not in members]
        order = [*living, *(sorted(newcomers) if not members else newcomers)]
        holders = [w for w in living if came[w].step == last.step]
        if not holders and step > 0:
            self._fault = PoolError(f"every worker that held the state of step {step} is gone: a checkpoint is left")
        order.sort(key=lambda w: w not in holders)  # stable: who holds the state comes first
        moved = not commit or bool(newcomers)
        verdict = Verdict(
            commit=commit,
            step=step,
            epoch=last.epoch + moved,
            seats=tuple(came[w].seat for w in order),
            source=0 if len(holders) < len(order) else None,
            report=commit and len(members) >= self._size,
        )
        self._end_turn(verdict)

    def _end_turn(self, verdict: Verdict) -> None:
        self._verdict, self._arrived = verdict, {}
        self._turn += 1
        self._door.notify_all()
