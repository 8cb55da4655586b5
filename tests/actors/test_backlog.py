"""The backlog: what a watcher has is forgotten, so that a long run costs no memory."""

from __future__ import annotations

from zellige_ray.actors.backlog import Backlog
from zellige_ray.monitor.events import NoteEvent


def note(number: int) -> NoteEvent:
    return NoteEvent("info", str(number))


def test_ten_thousand_events_are_handed_over_once_each_and_not_kept() -> None:
    backlog, got, most = Backlog(), list[object](), 0
    for number in range(10_000):
        backlog.add(note(number))
        if number % 7 == 0:
            got += backlog.after(len(got))
        most = max(most, len(backlog))
    got += backlog.after(len(got))
    assert got == [note(number) for number in range(10_000)]
    assert most <= 14


def test_an_answer_that_got_lost_is_given_again() -> None:
    backlog = Backlog([note(0), note(1)])
    assert backlog.after(1) == backlog.after(1) == [note(1)]


def test_a_new_driver_has_the_history_and_the_watcher_goes_on_where_it_was() -> None:
    backlog = Backlog(note(number) for number in range(5))
    backlog.add(note(5))
    assert backlog.after(4) == [note(4), note(5)]
    assert backlog.after(9) == [], "more than there are: the watcher heard what was not written down"
