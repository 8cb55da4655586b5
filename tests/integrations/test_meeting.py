"""The meeting: who waits for whom, what counts, and who goes on, in every order of arrivals and deaths."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from zellige_ray.errors import PoolError
from zellige_ray.integrations.meeting import Arrival, Meeting, Seat, Verdict


class Room:
    """A meeting and threads that stand for workers."""

    def __init__(self, size: int) -> None:
        self.meeting, self.pool = Meeting(size), ThreadPoolExecutor(16)

    def come(self, worker: str, epoch: int, step: int, ok: bool = True, timeout_s: float = 10.0) -> Future[Verdict]:
        seat = Seat(worker, "node", 1 << 30)
        return self.pool.submit(self.meeting.meet, Arrival(seat, epoch, step, ok), timeout_s)

    def all(self, workers: str, epoch: int, step: int, **more: Any) -> Verdict:
        verdicts = [f.result(10) for f in [self.come(w, epoch, step, **more) for w in workers]]
        assert all(v == verdicts[0] for v in verdicts)
        return verdicts[0]


def names(verdict: Verdict) -> str:
    return "".join(seat.worker for seat in verdict.seats)


def test_nobody_begins_before_all_places_are_filled_and_one_rank_gives_its_state() -> None:
    room = Room(3)
    early = room.come("b", -1, -1, ok=False)
    assert not early.done()
    verdict = room.all("ca", -1, -1, ok=False)
    assert early.result(10) == verdict
    assert (verdict.commit, verdict.step, verdict.epoch, names(verdict), verdict.source) == (False, 0, 0, "abc", 0)


def test_a_step_counts_when_everybody_votes_for_it_and_the_epoch_stays() -> None:
    room = Room(2)
    room.all("ab", -1, -1, ok=False)
    for step in range(3):
        verdict = room.all("ab", 0, step)
        assert (verdict.commit, verdict.step, verdict.epoch, verdict.source) == (True, step + 1, 0, None)
        assert verdict.report


def test_one_vote_against_drops_the_step_for_all_and_begins_an_epoch() -> None:
    room = Room(2)
    room.all("ab", -1, -1, ok=False)
    a, b = room.come("a", 0, 0), room.come("b", 0, 0, ok=False)
    assert a.result(10) == b.result(10)
    assert (a.result().commit, a.result().step, a.result().epoch, a.result().source) == (False, 0, 1, None)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_drops_the_step_also_when_the_dead_had_voted_and_the_others_go_on(when: str) -> None:
    room = Room(3)
    room.all("abc", -1, -1, ok=False)
    if when == "after":
        room.come("b", 0, 0)
        while "b" not in room.meeting._arrived:
            pass
    assert room.meeting.lose("b")
    verdict = room.all("ac", 0, 0)
    assert (verdict.commit, verdict.step, verdict.epoch, names(verdict), verdict.source) == (False, 0, 1, "ac", None)
    shrunk = room.all("ac", 1, 0)
    assert (shrunk.commit, shrunk.step) == (True, 1)
    assert not shrunk.report, "a place is empty: ray.train.report would wait for it"


def test_a_newcomer_takes_over_state_without_the_step_being_lost() -> None:
    room = Room(2)
    room.all("ab", -1, -1, ok=False)
    room.meeting.lose("a")
    room.all("b", 0, 0)
    newcomer = room.come("c", -1, -1, ok=False)
    while "c" not in room.meeting._arrived:
        pass
    verdict = room.come("b", 1, 0).result(10)
    assert newcomer.result(10) == verdict
    assert (verdict.commit, verdict.step, verdict.epoch, names(verdict), verdict.source) == (True, 1, 2, "bc", 0)
    assert not verdict.report, "the newcomer has not done this step"
    assert room.all("bc", 2, 1).report


def test_a_takeover_that_breaks_is_tried_again_from_who_holds_the_state() -> None:
    room = Room(2)
    room.all("ab", -1, -1, ok=False)
    room.all("ab", 0, 0)
    room.meeting.lose("a")
    room.all("b", 0, 1)
    first, second = room.come("c", -1, -1, ok=False), room.come("b", 1, 1)
    first.result(10), second.result(10)
    c, b = room.come("c", room.meeting.epoch, -1, ok=False), room.come("b", room.meeting.epoch, 2, ok=False)
    verdict = c.result(10)
    assert verdict == b.result(10)
    assert (verdict.commit, names(verdict), verdict.source) == (False, "bc", 0)


def test_state_that_everybody_lost_is_said_not_made_up() -> None:
    room = Room(2)
    room.all("ab", -1, -1, ok=False)
    room.all("ab", 0, 0)
    room.meeting.lose("a")
    room.meeting.lose("b")
    newcomers = [room.come(w, -1, -1, ok=False) for w in "cd"]
    for newcomer in newcomers:
        with pytest.raises(PoolError, match="every worker that held the state of step 1 is gone"):
            newcomer.result(10)


def test_a_newcomer_that_comes_after_the_end_goes_home() -> None:
    room = Room(2)
    room.all("ab", -1, -1, ok=False)
    for worker in "ab":
        room.meeting.lose(worker, finished=True)
    assert room.come("c", -1, -1, ok=False).result(10).over


def test_who_was_removed_and_who_waits_too_long_is_told() -> None:
    room = Room(2)
    room.all("ab", -1, -1, ok=False)
    with pytest.raises(PoolError, match=r"\['b'\] did not come in 0.1 s"):
        room.come("a", 0, 0, timeout_s=0.1).result(10)
    room.meeting.lose("b")
    with pytest.raises(PoolError, match="worker b was removed"):
        room.come("b", 0, 0).result(10)
