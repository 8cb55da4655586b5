"""Graveyard: process groups that nobody uses any more, released in background threads.

A group's destructor blocks for up to its time-out (measured: 7-11 s), so it never runs on a thread that works. A thread
that is still inside the transport library when the interpreter ends would abort the process; so the process waits for
its graveyards at exit, for at most `EXIT_S`.
"""

from __future__ import annotations

import atexit
import functools
import threading
import time

from zellige_ray.attention.pending import Waiter
from zellige_ray.attention.transport import Group

EXIT_S = 3.0

_threads: set[threading.Thread] = set()


def release(groups: list[Group], waiters: list[Waiter]) -> None:
    """Let go of groups once nothing of them is in flight; returns at once. The caller keeps no reference to them."""
    _wait_at_exit()
    thread = threading.Thread(target=_bury, args=(groups, waiters), name="zellige-graveyard", daemon=True)
    _threads.add(thread)
    thread.start()


def _bury(groups: list[Group], waiters: list[Waiter]) -> None:
    for group in groups:
        group.abort()
        del group
    for waiter in waiters:
        waiter.join()
    groups.clear()
    _threads.discard(threading.current_thread())


@functools.cache
def _wait_at_exit() -> None:
    """Registered once, by the first release."""
    atexit.register(_join)


def _join() -> None:
    deadline = time.monotonic() + EXIT_S
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))
