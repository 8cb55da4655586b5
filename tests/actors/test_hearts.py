"""Who is silent for too long, who only seems to be, and how a lease ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from zellige_ray.actors.hearts import Hearts
from zellige_ray.actors.lease import Lease


class World:
    """Two workers that answer after `delay`, or never; a clock that only `run` moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.delay: dict[str, float | None] = {"a": 0.01, "b": 0.01}
        self.dead: set[str] = set()
        self.hearts = Hearts(0.5, 2.0, self.ping, self.answered, lambda: self.now)
        for worker in self.delay:
            self.hearts.watch(worker)
            self.hearts.settle(worker)

    def ping(self, worker: str) -> Any:
        return (worker, self.now)

    def answered(self, refs: list[Any]) -> Mapping[Any, bool]:
        done = {}
        for worker, sent in refs:
            delay = self.delay[worker]
            if worker in self.dead:
                done[(worker, sent)] = False
            elif delay is not None and self.now - sent >= delay:
                done[(worker, sent)] = True
        return done

    def run(self, seconds: float, step: float = 0.1) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            self.hearts.beat()


def test_a_frozen_worker_is_silent_after_the_time_out_and_no_other_is() -> None:
    world = World()
    world.run(3)
    world.delay["b"] = None
    froze = world.now
    while world.hearts.silent("b") is None:
        world.run(0.1)
    assert 1.4 <= world.now - froze <= 2.8  # counted from the last answer: the ping in flight does not prolong it
    assert world.hearts.silent("a") is None
    assert "no answer to pings for" in str(world.hearts.silent("b"))


def test_pings_that_fail_are_no_sign_of_life() -> None:
    world = World()
    world.run(2)
    world.dead.add("a")
    world.run(3)
    assert world.hearts.silent("a") is not None


def test_a_starved_machine_is_given_more_time_and_a_quick_one_is_not() -> None:
    world = World()
    world.run(2)
    assert world.hearts.limit_s < 3
    world.delay = {"a": 1.5, "b": 1.5}
    world.run(6)
    assert 6 < world.hearts.limit_s <= 10
    world.delay = {"a": 0.01, "b": 0.01}
    world.run(30)
    assert world.hearts.limit_s < 3


def test_when_the_driver_itself_stood_still_nobody_is_blamed() -> None:
    world = World()
    world.run(2)
    world.now += 3600  # a laptop was closed
    world.hearts.beat()
    assert world.hearts.silent("a") is None
    world.run(3)
    assert world.hearts.silent("a") is None


def test_a_worker_that_is_forgotten_is_never_silent() -> None:
    world = World()
    world.hearts.forget("a")
    world.run(5)
    assert world.hearts.silent("a") is None


def test_a_lease_that_is_renewed_lasts_and_one_that_is_not_ends_once() -> None:
    ended = threading.Event()
    lease = Lease(0.3, ended.set)
    for _ in range(8):
        lease.renew()
        assert not ended.wait(0.1)
    assert ended.wait(5)


def test_a_lease_that_is_given_up_never_expires() -> None:
    ended = threading.Event()
    Lease(0.1, ended.set).end()
    assert not ended.wait(0.4)


def test_workers_that_are_still_starting_do_not_make_the_time_out_longer() -> None:
    world = World()
    world.hearts.watch("c")
    world.delay["c"] = 1.8
    world.run(10)
    assert world.hearts.limit_s < 3


def test_what_a_worker_was_silent_while_it_started_is_not_held_against_it_nor_against_the_others() -> None:
    world = World()
    world.delay["c"] = 6.0  # its imports hold the interpreter
    world.hearts.watch("c")
    world.run(5)
    world.hearts.settle("c")
    assert world.hearts.silent("c") is None
    world.run(1.9)  # the answer to a ping from before comes
    assert world.hearts.silent("c") is None
    assert world.hearts.limit_s < 2 + 3 * 2


def test_an_answer_to_a_call_is_a_sign_of_life() -> None:
    world = World()
    world.delay["a"] = None
    world.run(2.3)
    world.hearts.hear("a")
    world.run(1.5)
    assert world.hearts.silent("a") is None
    world.run(1.0)
    assert world.hearts.silent("a") is not None


def test_a_moment_in_which_one_worker_does_not_answer_is_no_sign_of_a_starved_machine() -> None:
    world = World()
    world.run(3)
    world.delay["a"] = 1.5
    world.run(2)
    world.delay["a"] = 0.01
    world.run(3)
    assert world.hearts.limit_s < 2.5
