"""Polite threads: those that move bytes don't push the thread that computes off its core.

gloo's thread tries the lock of a connection again and again while another thread posts on it. Woken by bytes that come
in, it preempts that other thread where both share a core, and then polls until its time slice is over: 3 to 5 ms, in
every fourth exchange or so of ranks with a core each (`benchmarks/polite_threads.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def polite_threads() -> Iterator[None]:
    """Threads that are started inside never preempt others when they wake up; they run as soon as a core is free.

    It is Linux's batch policy, which threads inherit. Where the caller has another policy than the usual one, or the
    system has no such policies or refuses them, nothing changes.
    """
    if not hasattr(os, "sched_setscheduler") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # a sandbox
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
