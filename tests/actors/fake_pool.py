"""A pool without processes: workers that keep the protocol and nothing else, and a timetable of faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zellige_ray.actors.messages import Decision, Invitation, Measurement, Member, Order, Reply, Vote
from zellige_ray.actors.pool import Gathered
from zellige_ray.monitor.events import RankTimes


@dataclass(frozen=True)
class Fault:
    """At the n-th call of a method (counted from 1, over the run): who dies, who answers broken."""

    method: str
    call: int
    die: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


@dataclass
class FakeWorker:
    """What a worker remembers. history: every step it applied, with whether weights changed."""

    name: str
    epoch: int = -1
    step: int = 0
    pending: int | None = None
    history: list[tuple[int, bool]] = field(default_factory=list)

    def apply(self, decided: Decision) -> None:
        if decided.step <= self.step:
            return
        assert self.pending == decided.step == self.step + 1, "a step was applied that this worker never voted for"
        self.step, self.pending = decided.step, None
        self.history.append((decided.step, decided.update))


class FakePool:
    """See `Pool`. nonfinite: steps whose gradients are not finite."""

    def __init__(self, faults: Sequence[Fault] = (), nonfinite: Sequence[int] = (), spares: int = 0) -> None:
        self.faults, self.nonfinite, self.spares = list(faults), set(nonfinite), spares
        self.workers: dict[str, FakeWorker] = {}
        self.dead: dict[str, FakeWorker] = {}
        self.requested = self.count = 0
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.cancelled: list[tuple[tuple[str, ...], int]] = []
        self.orders: list[Order] = []
        self.closed = False

    def _spawn(self) -> Member:
        name, self.count = f"worker-{self.count}", self.count + 1
        self.workers[name] = FakeWorker(name)
        return Member(name, "node", 100 + self.count, "cpu", 8 << 30, 0)

    def start(self, count: int, min_count: int, checkpoint: str | None, timeout_s: float) -> list[Member]:
        return [self._spawn() for _ in range(count)]

    def request(self, checkpoint: str | None) -> None:
        self.requested += 1

    def arrived(self) -> list[Member]:
        num = min(self.requested, self.spares)
        self.requested, self.spares = self.requested - num, self.spares - num
        return [self._spawn() for _ in range(num)]

    def store(self, epoch: int) -> Any:
        return epoch

    def submit(self, method: str, args: Mapping[str, Sequence[Any]]) -> Any:
        self.calls.append((method, tuple(args)))
        nth = sum(m == method for m, _ in self.calls)
        fault = next((f for f in self.faults if (f.method, f.call) == (method, nth)), Fault(method, nth))
        gone = {w for w in args if w in fault.die or w not in self.workers}
        for w in fault.die:
            if w in self.workers:
                self.dead[w] = self.workers.pop(w)
        hurt = bool(gone or fault.broken)
        replies = {w: self._answer(method, w, tuple(a), hurt) for w, a in args.items() if w not in gone}
        return replies, {w: "the actor died" for w in gone}

    def _answer(self, method: str, name: str, args: tuple[Any, ...], hurt: bool) -> Reply:
        worker = self.workers[name]
        if hurt and method in ("join", "measure", "step", "held_out", "denoise", "rehearse"):
            return Reply(name, worker.epoch, "broken", reason="a peer is gone")
        return Reply(name, worker.epoch, "ok", getattr(self, f"_{method}")(worker, *args))

    def gather(self, call: Any, timeout_s: float, first_fault: bool = True) -> Gathered:
        replies, lost = call
        return Gathered(replies, (), lost)

    def cancel(self, workers: Sequence[str], epoch: int) -> None:
        self.cancelled.append((tuple(workers), epoch))

    def remove(self, worker: str) -> None:
        if worker in self.workers:
            self.dead[worker] = self.workers.pop(worker)

    def close(self) -> None:
        self.closed = True

    # What workers do

    def _join(self, worker: FakeWorker, invitation: Invitation) -> int:
        if worker.pending == invitation.decided.step:
            worker.apply(invitation.decided)
        worker.pending, worker.epoch = None, invitation.epoch
        if invitation.source is not None:
            worker.step = invitation.decided.step
        assert worker.step == invitation.decided.step
        return worker.step

    def _measure(self, worker: FakeWorker, epoch: int) -> Measurement:
        assert epoch == worker.epoch
        return Measurement(1e10, 8e9, 1e9, 1e-4)

    def _on(self, worker: FakeWorker, order: Order) -> None:
        assert order.epoch == worker.epoch == order.plan.epoch, "an order of another epoch"
        assert order.plan.world_size == sum(w.epoch == worker.epoch for w in self.workers.values())
        self.orders.append(order)
        worker.apply(order.decided)

    def _step(self, worker: FakeWorker, order: Order) -> Vote:
        self._on(worker, order)
        worker.pending = order.decided.step + 1
        return self._vote(worker, worker.pending not in self.nonfinite)

    def _rehearse(self, worker: FakeWorker, order: Order) -> Vote:
        self._on(worker, order)
        return self._vote(worker, True)

    def _vote(self, worker: FakeWorker, finite: bool) -> Vote:
        return Vote(1.0, 2.0, finite, 1e-3, 0.5, RankTimes(0, 0.1, 0.1, 0.1, 0.1, 10, 1 << 20))

    def _held_out(self, worker: FakeWorker, order: Order) -> float:
        self._on(worker, order)
        return 2.0 / (1 + worker.step)

    def _denoise(self, worker: FakeWorker, order: Order) -> list[Any]:
        self._on(worker, order)
        return []

    def _render(self, worker: FakeWorker, folder: str, sample: Any, parts: Any) -> str:
        return f"{sample.id}.png"

    def _save(self, worker: FakeWorker, folder: str, decided: Decision) -> int:
        worker.apply(decided)
        (Path(folder) / "state").write_text(str(worker.step), encoding="utf-8")
        return worker.step
