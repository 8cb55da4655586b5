"""A pool without processes: workers that keep the protocol and nothing else, and a timetable of faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zellige_ray
from tests.placement.simulated import simulated_curves
from zellige_ray.actors.messages import (
    Corrupt,
    Decision,
    Invitation,
    Member,
    Order,
    Reply,
    Saving,
    Standing,
    Starved,
    Vote,
)
from zellige_ray.actors.pool import Adopted, Gathered
from zellige_ray.monitor.events import RankTimes
from zellige_ray.placement.memory import MemoryModel, Moment, StateSize
from zellige_ray.placement.step_curves import StepCurves
from zellige_ray.training.profile_scope import Probe, Scope

FAKE_MEMORY = MemoryModel(StateSize(1 << 20), (Moment.of("all", tokens=1 << 10),), measured=True)


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
    vote: Vote | None = None
    member: Member | None = None
    history: list[tuple[int, bool]] = field(default_factory=list)

    def apply(self, decided: Decision) -> None:
        if decided.step <= self.step:
            return
        assert self.vote is not None, "a step was applied that this worker never voted for"
        assert self.vote.step == decided.step == self.step + 1, "a step was applied that this worker never voted for"
        self.step, self.vote = decided.step, None
        self.history.append((decided.step, decided.update))


class FakePool:
    """See `Pool`. nonfinite: steps whose gradients are not finite. corrupt: samples that nobody can read.

    slow: worker -> how many times longer it computes. draining: what `leaving` says. odd: versions of workers by name.
    early_deaths: why the first workers die while they are set up.
    model: width and heads of what they profile.
    """

    def __init__(self, faults: Sequence[Fault] = (), nonfinite: Sequence[int] = (), spares: int = 0) -> None:
        self.faults, self.nonfinite, self.spares = list(faults), set(nonfinite), spares
        self.workers: dict[str, FakeWorker] = {}
        self.dead: dict[str, FakeWorker] = {}
        self.asked = self.count = 0
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.cancelled: list[tuple[tuple[str, ...], int]] = []
        self.orders: list[Order] = []
        self.closed = False
        self.corrupt: set[str] = set()
        self.slow: dict[str, float] = {}
        self.model = (128, 4)
        self.draining: dict[str, str] = {}
        self.odd: dict[str, str] = {}
        self.broken_setups: list[str] = []
        self.early_deaths: list[str] = []
        self.highest = -1
        self.save_error = ""
        self.starve: Callable[[str, Order], str | None] | None = None  # says why a worker can't hold an order
        self.peak_bytes = 0

    def _spawn(self) -> Member:
        name, self.count = f"worker-{self.count}", self.count + 1
        version = self.odd.get(name, zellige_ray.__version__)
        member = Member(name, "node", 100 + self.count, "cpu", 8 << 30, 0, version, "model")
        self.workers[name] = FakeWorker(name, member=member)
        return member

    def start(
        self, count: int, min_count: int, checkpoint: str | None, timeout_s: float, died: Callable[[str, str], None]
    ) -> list[Member]:
        self.asked = 0
        for reason in self.early_deaths:
            name, self.count = f"worker-{self.count}", self.count + 1
            died(name, reason)
        return [self._spawn() for _ in range(count)]

    def adopt(self, expected: Sequence[str], checkpoint: str | None) -> Adopted:
        standings = {}
        for name, worker in self.workers.items():
            assert worker.member is not None
            standings[name] = Standing(worker.member, worker.epoch, worker.step, worker.vote)
        lost = {w: "is gone" for w in expected if w not in self.workers}
        return Adopted(standings, max([self.highest, *(w.epoch for w in self.workers.values())]), lost)

    def request(self, checkpoint: str | None) -> None:
        self.asked += 1

    def requested(self) -> int:
        return self.asked

    def arrived(self, wait_s: float = 0.0) -> list[Member]:
        num = min(self.asked, self.spares)
        self.asked, self.spares = self.asked - num, self.spares - num
        return [self._spawn() for _ in range(num)]

    def failed(self) -> dict[str, str]:
        failed = {f"worker-{90 + i}": reason for i, reason in enumerate(self.broken_setups)}
        self.broken_setups = []
        return failed

    def leaving(self) -> dict[str, str]:
        return dict(self.draining)

    def room(self) -> str:
        return "free now: nothing"

    def store(self, epoch: int) -> Any:
        self.highest = max(epoch, self.highest)
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
        bad = tuple(s.id for a in args if isinstance(a, Order) for s in a.samples if s.id in self.corrupt)
        if bad:
            return Reply(name, worker.epoch, "broken", Corrupt(bad), "latents can't be read")
        starved = self.starve(name, args[0]) if method == "step" and self.starve is not None else None
        if starved is not None:
            return Reply(name, worker.epoch, "broken", Starved(starved), starved)
        if hurt and method in ("join", "probe", "measure", "weigh", "step", "held_out", "denoise", "rehearse"):
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
        assert invitation.epoch > worker.epoch, "an epoch number was given twice"
        if worker.vote is not None and worker.vote.step == invitation.decided.step:
            worker.apply(invitation.decided)
        worker.vote, worker.epoch = None, invitation.epoch
        assert any(w.step == invitation.decided.step for w in self.workers.values()), "nobody holds the state"
        worker.step = invitation.decided.step  # from its peers
        return worker.step

    def _probe(self, worker: FakeWorker, epoch: int) -> Probe:
        assert epoch == worker.epoch
        return Probe("fake", "none", 1e-3 * self.slow.get(worker.name, 1.0))

    def _measure(self, worker: FakeWorker, epoch: int, scope: Scope) -> StepCurves:
        assert epoch == worker.epoch and len(scope.nodes) == sum(w.epoch == epoch for w in self.workers.values())
        return simulated_curves(*self.model, reduced_by=len(scope.nodes))

    def _weigh(self, worker: FakeWorker, epoch: int) -> MemoryModel:
        assert epoch == worker.epoch
        return FAKE_MEMORY

    def _on(self, worker: FakeWorker, order: Order) -> None:
        assert order.epoch == worker.epoch == order.plan.epoch, "an order of another epoch"
        assert order.plan.world_size == sum(w.epoch == worker.epoch for w in self.workers.values())
        self.orders.append(order)
        worker.apply(order.decided)

    def _step(self, worker: FakeWorker, order: Order) -> Vote:
        self._on(worker, order)
        worker.vote = self._result(worker, order, order.decided.step + 1 not in self.nonfinite)
        return worker.vote

    def _rehearse(self, worker: FakeWorker, order: Order) -> Vote:
        self._on(worker, order)
        return self._result(worker, order, True)

    def _result(self, worker: FakeWorker, order: Order, finite: bool) -> Vote:
        """Compute times are those of the plan on ranks of speed 1, times `slow`; waiting takes long on every rank."""
        rank = sorted((w for w in self.workers.values() if w.epoch == worker.epoch), key=_number).index(worker)
        tokens = sum(s.stop - s.start for r in order.plan.rounds for s in r.shards() if s.rank == rank)
        seconds = 1e-3 * tokens * self.slow.get(worker.name, 1.0)
        times = RankTimes(rank, seconds / 2, seconds / 2, 0.1, 5.0, tokens, 1 << 20, self.peak_bytes)
        return Vote(worker.step + 1, order.plan.hash, 1.0, 1.0, 2.0, finite, 1e-3, 0.5, times)

    def _held_out(self, worker: FakeWorker, order: Order) -> float:
        self._on(worker, order)
        return 2.0 / (1 + worker.step)

    def _denoise(self, worker: FakeWorker, order: Order) -> list[Any]:
        self._on(worker, order)
        return []

    def _render(self, worker: FakeWorker, folder: str, sample: Any, parts: Any) -> str:
        return f"{sample.id}.png"

    def _save(self, worker: FakeWorker, folder: str, decided: Decision, writers: int) -> Saving:
        worker.apply(decided)
        (Path(folder) / "state").write_text(str(worker.step), encoding="utf-8")
        (Path(folder) / ".metadata").touch()
        return Saving(worker.step, 8)

    def _saving(self, worker: FakeWorker) -> Saving:
        return Saving(worker.step, 8, done=not self.save_error, error=self.save_error)

    def _setup(self, worker: FakeWorker, checkpoint: str | None) -> Member:
        worker.step = int((Path(checkpoint) / "state").read_text(encoding="utf-8")) if checkpoint else 0
        assert worker.member is not None
        return worker.member


def _number(worker: FakeWorker) -> int:
    return int(worker.name.partition("-")[2])
