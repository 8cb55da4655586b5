"""Who leaves in time, who must wait, who is refused, who gets less work: on the fake pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.actors.fake_pool import FakePool, Fault
from tests.actors.test_driver import HELD, TRAIN, make_config, of, run
from zellige_ray.actors.driver import Driver
from zellige_ray.actors.nodes import Drains
from zellige_ray.actors.prepared import Start
from zellige_ray.data.ledger import read, verify
from zellige_ray.errors import CheckpointError, DataError, PoolError
from zellige_ray.monitor.events import CheckpointEvent, Event, HeldOutEvent, MembershipEvent, NoteEvent, StepEvent
from zellige_ray.training.checkpoint_files import newest, read_position


def run_with(pool: FakePool, folder: Path, at: Any, **settings: Any) -> tuple[dict[str, Any], list[Event]]:
    """at(event): called with every event, to change the pool while the run goes."""
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        at(event)

    return Driver(make_config(**settings), folder, pool, TRAIN, HELD, 64, Start(), emit).run(), events


def test_a_worker_of_a_draining_node_leaves_at_a_boundary_and_nothing_is_run_again(tmp_path: Path) -> None:
    pool = FakePool(spares=1)

    def at(event: Event) -> None:
        if isinstance(event, StepEvent) and event.step == 3:
            pool.draining = {"worker-1": "its node drains, 8 s before it goes"}

    summary, events = run_with(pool, tmp_path, at)
    changes = [(e.change, e.worker, e.step, e.replayed) for e in of(MembershipEvent, events)]
    assert changes[0] == ("left", "worker-1", 4, 0)
    assert changes[1][:2] == ("joined", "worker-3")
    assert [e.world_size for e in of(StepEvent, events)] == [3, 3, 3, 2, 3, 3, 3, 3, 3]
    assert sum(m == "step" for m, _ in pool.calls) == 9
    assert (summary["replans"], summary["samples_lost"], summary["samples_doubled"]) == (0, 0, 0)


def test_when_too_few_would_stay_they_stay_and_a_checkpoint_is_made(tmp_path: Path) -> None:
    pool = FakePool()

    def at(event: Event) -> None:
        if isinstance(event, StepEvent) and event.step == 2:
            pool.draining = dict.fromkeys(("worker-0", "worker-1", "worker-2"), "its node drains")

    _, events = run_with(pool, tmp_path, at, checkpoint={"every": 100})
    (note,) = [e for e in of(NoteEvent, events) if "workers.min would not be met" in e.text]
    assert "worker-0, worker-1, worker-2 should leave" in note.text
    assert of(CheckpointEvent, events)[0].step == 2
    assert {e.world_size for e in of(StepEvent, events)} == {3}


def test_one_worker_measures_again_when_it_is_no_longer_alone(tmp_path: Path, own_profiles: None) -> None:
    pool = FakePool([Fault("measure", 1, die=("worker-1",))])

    def at(event: Event) -> None:
        if isinstance(event, StepEvent) and event.step == 2:
            pool.spares = 1

    _, events = run_with(pool, tmp_path, at, workers={"count": 2, "min": 1})
    assert [e.world_size for e in of(StepEvent, events)] == [1, 1, *[2] * 7]
    told = [e.text for e in of(NoteEvent, events) if " rates: " in e.text]
    assert [t.split(";")[0] for t in told] == ["1 rank", "2 ranks"]
    assert "1000000 MB/s to a neighbour" in told[0] and "1000000 MB/s" not in told[1]


def test_drains_are_told_with_their_deadline_and_asked_for_seldom() -> None:
    clock, asked = [100.0], []

    def read_nodes() -> dict[str, int]:
        asked.append(clock[0])
        return {"n1": 0, "n2": 1}

    drains = Drains(read_nodes, lambda: clock[0])
    assert drains.now() == {"n1": "its node drains", "n2": "its node drains, 0 s before it goes"}
    drains.now()
    clock[0] += 1
    drains.now()
    assert len(asked) == 2


def test_below_the_minimum_the_run_waits_says_so_and_goes_on_when_a_worker_comes(tmp_path: Path) -> None:
    pool = FakePool([Fault("step", 3, die=("worker-0", "worker-1"))])

    def at(event: Event) -> None:
        if isinstance(event, NoteEvent) and "waiting for workers" in event.text:
            assert "1 alive, workers.min is 2, 2 asked for, free now: nothing; up to 20 s" in event.text
            pool.spares = 2

    summary, events = run_with(pool, tmp_path, at, workers={"count": 3, "min": 2, "wait_timeout_s": 20})
    assert [e.world_size for e in of(StepEvent, events)] == [3, 3, *[3] * 7]
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (9, 0, 0)


def test_a_worker_of_another_version_or_model_is_refused_by_name_and_not_asked_for_again(tmp_path: Path) -> None:
    pool = FakePool([Fault("step", 3, die=("worker-1",))], spares=1)
    pool.odd = {"worker-3": "9.9.9"}
    _, events = run(tmp_path, pool)
    (note,) = [e for e in of(NoteEvent, events) if "refused" in e.text]
    assert "worker-3 on node node is refused: it runs zellige_ray 9.9.9" in note.text
    assert {e.world_size for e in of(StepEvent, events)} == {3, 2}
    assert pool.asked == 0


def test_workers_that_can_not_be_set_up_are_named_and_asked_for_again_five_times(tmp_path: Path) -> None:
    pool = FakePool()

    def at(event: Event) -> None:
        if isinstance(event, StepEvent):
            pool.broken_setups = ["CUDA out of memory"]

    _, events = run_with(pool, tmp_path, at)
    notes = [e.text for e in of(NoteEvent, events) if "could not be set up: CUDA out of memory" in e.text]
    assert [n.endswith("another is asked for") for n in notes[:5]] == [True] * 4 + [False]
    assert pool.asked == 4


def test_a_corrupt_sample_is_set_aside_on_all_ranks_and_its_batch_goes_on_without_it(tmp_path: Path) -> None:
    pool = FakePool()
    bad = next(s.id for s in TRAIN.samples if s.media == "image")
    pool.corrupt = {bad}
    summary, events = run(tmp_path, pool, steps=12)
    assert any(bad in e.text and "set aside" in e.text for e in of(NoteEvent, events))
    records = list(read(tmp_path / "ledger.jsonl"))
    assert [r.detail for r in records if r.event == "quarantined"] == [bad]
    assert all(bad not in r.sample_ids for r in records)
    report = verify(tmp_path / "ledger.jsonl", TRAIN.ids)
    assert report.ok
    assert (summary["steps"], summary["world_sizes"]) == (12, [3])
    assert len({frozenset(s.id for s in o.samples) for o in pool.orders if o.epoch == 0}) >= 1
    assert not of(MembershipEvent, events)


def test_a_corrupt_held_out_sample_is_left_out_of_the_held_out_loss(tmp_path: Path) -> None:
    pool = FakePool()
    pool.corrupt = {HELD.samples[0].id}
    _, events = run(tmp_path, pool)
    assert len(of(HeldOutEvent, events)) == 4


def test_more_corrupt_samples_than_allowed_end_the_run_by_name(tmp_path: Path) -> None:
    pool = FakePool()
    pool.corrupt = {s.id for s in TRAIN.samples[:3]}
    with pytest.raises(DataError, match=r"of 17 samples can't be read, data.max_corrupt is 10.0%"):
        run(tmp_path, pool)


def work(pool: FakePool, events: list[Event], worker: int) -> list[float]:
    """Share of the tokens that a rank was given, step by step."""
    return [e.measured[worker].tokens / e.tokens for e in of(StepEvent, events)]


def test_a_slowed_worker_gets_less_work_within_five_steps_and_gets_it_back(tmp_path: Path) -> None:
    pool = FakePool()

    def at(event: Event) -> None:
        if isinstance(event, StepEvent) and event.step == 10:
            pool.slow = {"worker-1": 4.0}
        if isinstance(event, StepEvent) and event.step == 25:
            pool.slow = {}

    settings: dict[str, Any] = {"steps": 40, "batch": {"samples": 17}, "evaluate_every": 100, "compare_batches": 0}
    _, events = run_with(pool, tmp_path, at, preview={"every": None}, checkpoint={"every": 100}, **settings)
    share = work(pool, events, 1)
    assert all(0.25 < s < 0.42 for s in share[:10])
    assert all(s < 0.2 for s in share[15:25]), share
    assert all(s > 0.25 for s in share[31:]), share


def test_speeds_of_a_named_profile_stay_so_that_plans_can_be_repeated(tmp_path: Path) -> None:
    pool = FakePool()
    pool.slow = {"worker-1": 4.0}
    settings: dict[str, Any] = {"steps": 12, "batch": {"samples": 17}, "compare_batches": 0}
    _, events = run(tmp_path, pool, placement={"hardware": "cpu"}, preview={"every": None}, **settings)
    assert min(work(pool, events, 1)) > 0.2


def test_a_checkpoint_that_can_not_be_written_is_a_warning_with_figures_and_training_goes_on(tmp_path: Path) -> None:
    pool = FakePool()

    def at(event: Event) -> None:
        if isinstance(event, StepEvent):
            pool.save_error = "No space left on device" if event.step <= 5 else ""

    summary, events = run_with(pool, tmp_path, at)
    (note,) = [e for e in of(NoteEvent, events) if "no checkpoint of step 4" in e.text]
    assert "No space left on device (it needs 0.0 MB, " in note.text
    assert " MB are free)" in note.text
    assert summary["steps"] == 9
    assert [e.step for e in of(CheckpointEvent, events)] == [8, 9]
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_when_not_even_the_last_checkpoint_can_be_written_the_run_ends_by_name(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("no folder", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 9: .* MB are free"):
        run(tmp_path, FakePool())
    assert verify(tmp_path / "ledger.jsonl", TRAIN.ids).steps == 9


def test_with_too_few_for_too_long_a_complete_checkpoint_is_left(tmp_path: Path) -> None:
    pool = FakePool([Fault("step", 6, die=("worker-1", "worker-2"))])
    with pytest.raises(PoolError, match=r"waited 0 s \(workers.wait_timeout_s\), free now: nothing"):
        run(tmp_path, pool, workers={"count": 3, "min": 2, "wait_timeout_s": 0.3})
    checkpoint = newest(tmp_path)
    assert checkpoint is not None
    assert read_position(checkpoint).step == 5


def test_newcomers_that_find_nobody_with_the_state_are_kept_and_start_from_the_checkpoint(tmp_path: Path) -> None:
    """All that held the state die while the epoch forms that was to take two newcomers in."""
    pool = FakePool([Fault("step", 6, die=("worker-1",)), Fault("join", 3, die=("worker-0", "worker-2"))], spares=1)
    summary, events = run(tmp_path, pool)
    assert set(pool.workers) == {"worker-3"}
    assert any("to be replayed from step-00000004" in e.text for e in of(NoteEvent, events))
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (9, 0, 0)


def test_asked_to_stop_while_it_waits_for_workers_it_does_so_with_a_complete_checkpoint(tmp_path: Path) -> None:
    pool, drivers = FakePool([Fault("step", 6, die=("worker-1", "worker-2"))]), list[Driver]()

    def emit(event: Event) -> None:
        if isinstance(event, NoteEvent) and "waiting for workers" in event.text:
            drivers[0].stop()

    config = make_config(workers={"count": 3, "min": 2})
    drivers.append(Driver(config, tmp_path, pool, TRAIN, HELD, 64, Start(), emit))
    with pytest.raises(PoolError, match="asked to stop while it waited for workers"):
        drivers[0].run()
    checkpoint = newest(tmp_path)
    assert checkpoint is not None
    assert read_position(checkpoint).step == 5
