"""What a stall is: from a blow to the first step that was begun because the run knew of it."""

from __future__ import annotations

from zellige_ray.actors.chaos import Happening, boundary_stalls, stall_s
from zellige_ray.actors.journal import RESTARTED
from zellige_ray.actors.prepared import DRIVER
from zellige_ray.monitor.events import Event, MembershipEvent, NoteEvent, StepEvent

BLOW = 100.0


def step(number: int, started: float) -> StepEvent:
    return StepEvent(number, 0, 0, 3, 1.0, 1.0, 1e-3, 4, 1, 5, 900, 0, 0.3, 0.01, 0.3, 0.2, "hash", (), (), started)


def left(worker: str) -> MembershipEvent:
    return MembershipEvent(4, 1, "left", worker, "the actor died", 0.3, 5)


def test_a_step_that_had_been_ordered_before_the_driver_died_is_no_recovery() -> None:
    """Its workers began it 0.01 s after the kill, all voted, and the next driver commits it."""
    events: list[tuple[float, Event]] = [
        (99.9, step(3, 99.5)),
        (101.2, NoteEvent("warning", f"{RESTARTED}; workers kept their processes")),
        (101.3, step(4, 100.01)),
        (101.8, step(5, 101.4)),
    ]
    assert stall_s(Happening("driver_kill", BLOW, DRIVER, {}), events) == 101.4 - BLOW


def test_a_step_that_a_dying_node_still_finished_is_no_recovery() -> None:
    happening = Happening("node_remove", BLOW, "worker-1", {})
    events: list[tuple[float, Event]] = [
        (100.4, step(4, 100.02)),
        (100.5, left("worker-2")),  # by another cause
        (100.6, step(5, 100.55)),
        (100.7, left("worker-1")),
        (101.2, step(6, 100.8)),
    ]
    assert stall_s(happening, events) == 100.8 - BLOW
    assert stall_s(Happening("cut", BLOW, "", {}), events) == 100.55 - BLOW  # whoever is the first to be missed


def test_a_blow_that_nobody_noticed_or_that_no_step_followed_has_no_stall() -> None:
    happening = Happening("worker_kill", BLOW, "worker-1", {})
    assert stall_s(happening, [(99.0, left("worker-1")), (100.4, step(4, 100.1))]) is None
    assert stall_s(happening, [(100.3, left("worker-1"))]) is None


def test_a_join_stalls_from_one_commit_to_the_next_start() -> None:
    joined = MembershipEvent(4, 2, "joined", "worker-4", "took over step 3 from a peer (pid 7)", 0.1, 0)
    events: list[tuple[float, Event]] = [(99.8, step(3, 99.4)), (99.95, joined), (100.4, step(4, 100.0))]
    assert boundary_stalls(events, "joined") == [100.0 - 99.8]
