"""A driver that dies and starts again on the same workers: at every place of a step, nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.actors.fake_pool import FakePool, Fault
from tests.actors.test_driver import HELD, TRAIN, make_config, of
from zellige_ray.actors.driver import Driver
from zellige_ray.actors.memory import remember
from zellige_ray.actors.prepared import Start
from zellige_ray.data.ledger import Ledger, read, verify
from zellige_ray.errors import PoolError
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, MembershipEvent, NoteEvent, StepEvent
from zellige_ray.monitor.metrics import JsonLines

TOKEN = "abc"


class Died(BaseException):
    """SIGKILL: nothing of the driver goes on."""


class Run:
    """A run whose driver may die, and be started again with what is on the disk."""

    def __init__(self, folder: Path, pool: FakePool, **settings: Any) -> None:
        self.folder, self.pool, self.events = folder, pool, list[Event]()
        self.config = make_config(**settings)
        self.deaths = 0

    def go(self, again: bool) -> dict[str, Any]:
        memory = remember(self.folder, TOKEN, 0) if again else None
        sink = JsonLines(self.folder / run_folder.METRICS)

        def emit(event: Event) -> None:
            sink.see(event)
            self.events.append(event)

        self.pool.closed = False
        driver = Driver(self.config, self.folder, self.pool, TRAIN, HELD, 64, Start(), emit, TOKEN, memory)
        try:
            return driver.run()
        finally:
            sink.close()

    def to_the_end(self) -> dict[str, Any]:
        try:
            return self.go(again=False)
        except Died:
            self.deaths += 1
            return self.go(again=True)


def dying(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, nth: int, after: bool) -> None:
    """The driver dies at the nth call of a method, before or after it did its work; `close` is never reached."""
    original, calls = getattr(owner, method), [0]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] != nth:
            return original(*args, **kwargs)
        if after:
            original(*args, **kwargs)
        raise Died

    monkeypatch.setattr(owner, method, wrapped)
    monkeypatch.setattr("zellige_ray.actors.crew.Crew.close", lambda self: None)


PLACES = [
    (FakePool, "submit", 7, False), (FakePool, "submit", 7, True), (FakePool, "gather", 8, True),
    (Ledger, "append", 4, False), (Ledger, "append", 4, True), (FakePool, "store", 1, True),
    ("Journal", "stepped", 5, False), ("Journal", "stepped", 5, True), ("Crew", "between_steps", 3, True),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{getattr(p[0], '__name__', p[0])}.{p[1]}-{p[2]}-{p[3]}")
def test_killed_anywhere_it_goes_on_with_the_same_workers_and_every_sample_is_used_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    from zellige_ray.actors.crew import Crew
    from zellige_ray.actors.journal import Journal

    owner = {"Journal": Journal, "Crew": Crew}.get(place[0], place[0])
    dying(monkeypatch, owner, *place[1:])
    pool = FakePool()
    run = Run(tmp_path, pool)
    summary = run.to_the_end()
    assert run.deaths == 1
    report = verify(tmp_path / "ledger.jsonl", TRAIN.ids)
    assert report.ok
    assert (report.steps, report.steps_replayed) == (9, 0)
    assert [e.step for e in of(StepEvent, run.events)] == list(range(1, 10))
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (9, 0, 0)
    started = place[1] != "store"  # before the first epoch there are no workers to keep
    if started:
        assert set(pool.workers) == {"worker-0", "worker-1", "worker-2"}
    assert all(w.history == [(s, True) for s in range(1, 10)] for w in pool.workers.values() if started or w.epoch >= 0)
    assert [e.event for e in report.events].count("driver") == 1
    assert any("the driver died and started again" in e.text for e in of(NoteEvent, run.events))


def test_when_all_had_voted_the_step_is_committed_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying(monkeypatch, Ledger, "append", 4, False)
    pool = FakePool()
    run = Run(tmp_path, pool)
    run.to_the_end()
    assert [e.step for e in of(StepEvent, run.events)] == list(range(1, 10))
    assert sum(m == "step" for m, _ in pool.calls) == 9


def test_a_torn_line_in_the_ledger_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Ledger.append

    def torn(self: Any, record: Any) -> None:
        if record.step == 4 and record.event is None and run.deaths == 0:
            with (tmp_path / "ledger.jsonl").open("a") as file:
                file.write('{"kind":"commit","step":4,"pa')
            raise Died
        original(self, record)

    monkeypatch.setattr(Ledger, "append", torn)
    monkeypatch.setattr("zellige_ray.actors.crew.Crew.close", lambda self: None)
    run = Run(tmp_path, FakePool())
    run.to_the_end()
    assert verify(tmp_path / "ledger.jsonl", TRAIN.ids).ok
    assert [r.step for r in read(tmp_path / "ledger.jsonl") if r.event is None] == list(range(1, 10))


def test_a_worker_that_died_with_the_driver_is_missed_named_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying(monkeypatch, Ledger, "append", 4, False)
    pool = FakePool(spares=1)
    run = Run(tmp_path, pool)
    with pytest.raises(Died):
        run.go(again=False)
    pool.dead["worker-1"] = pool.workers.pop("worker-1")
    run.go(again=True)
    changes = [(e.change, e.worker) for e in of(MembershipEvent, run.events)]
    assert changes == [("left", "worker-1"), ("joined", "worker-3")]
    assert verify(tmp_path / "ledger.jsonl", TRAIN.ids).ok
    assert sum(m == "step" for m, _ in pool.calls) == 10  # the step in flight could not count without its vote


def test_a_newcomer_that_the_dead_driver_never_took_in_is_taken_in_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying(monkeypatch, Ledger, "append", 4, True)
    pool = FakePool()
    run = Run(tmp_path, pool, workers={"count": 4})
    with pytest.raises(Died):
        run.go(again=False)
    pool.dead["worker-0"] = pool.workers.pop("worker-0")
    pool._spawn()
    run.go(again=True)
    steps = of(StepEvent, run.events)
    assert {e.world_size for e in steps} == {4}
    assert pool.workers["worker-4"].history == [(s, True) for s in range(5, 10)]
    assert verify(tmp_path / "ledger.jsonl", TRAIN.ids).ok


def test_when_the_workers_died_too_the_newest_checkpoint_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying(monkeypatch, Ledger, "append", 6, True)
    pool = FakePool(spares=3)
    run = Run(tmp_path, pool)
    with pytest.raises(Died):
        run.go(again=False)
    pool.workers.clear()
    run.go(again=True)
    report = verify(tmp_path / "ledger.jsonl", TRAIN.ids)
    assert report.ok
    assert (report.steps, report.steps_replayed) == (9, 2)


def test_drivers_that_die_without_a_step_between_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FakePool.submit

    def submit(self: Any, method: str, args: Any) -> Any:
        if method == "step" and len(list(read(tmp_path / "ledger.jsonl"))) >= 3:
            raise Died
        return original(self, method, args)

    monkeypatch.setattr(FakePool, "submit", submit)
    monkeypatch.setattr("zellige_ray.actors.crew.Crew.close", lambda self: None)
    run = Run(tmp_path, FakePool())
    with pytest.raises(Died):
        run.go(again=False)
    for _ in range(5):
        with pytest.raises(Died):
            run.go(again=True)
    with pytest.raises(PoolError, match="the driver died 5 times without a step between"):
        run.go(again=True)


def test_a_fault_of_a_worker_after_a_restart_is_survived_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying(monkeypatch, Ledger, "append", 3, True)
    run = Run(tmp_path, FakePool([Fault("step", 6, die=("worker-2",)), Fault("join", 3, die=("worker-1",))]))
    summary = run.to_the_end()
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (9, 0, 0)
    assert [e.world_size for e in of(StepEvent, run.events)][-1] == 1
