"""Threads that move bytes come after the one that computes; whoever starts them keeps its own policy."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from torch.distributed import HashStore

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.polite import polite_threads

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="this system has no scheduling policies")


def threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def policies(tids: set[int]) -> set[int]:
    return {os.sched_getscheduler(tid) for tid in tids}


def test_every_thread_of_a_communicator_is_polite_and_its_maker_is_not() -> None:
    before = threads()
    comm = Comm.create(HashStore(), 7, 0, 1)
    try:
        started = threads() - before
        assert len(started) >= 4, "three waiters and gloo's own"
        assert policies(started) == {os.SCHED_BATCH}
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        comm.close()


def test_a_fault_inside_gives_the_policy_back() -> None:
    with pytest.raises(RuntimeError, match="inside"), polite_threads():
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        raise RuntimeError("inside")
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_thread_with_a_policy_of_its_own_keeps_it() -> None:
    seen: list[int] = []

    def work() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with polite_threads():
            seen.append(os.sched_getscheduler(0))
        seen.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [os.SCHED_BATCH, os.SCHED_BATCH]


def test_a_system_that_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "not here")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with polite_threads():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
