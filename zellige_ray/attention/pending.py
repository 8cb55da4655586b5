"""Pending: a communication in flight that can be waited for, and left when the epoch is cancelled.

gloo's point-to-point works can't be polled (measured: `is_completed` stays false until `wait`), and its waits can't be
interrupted. So a daemon thread does the blocking wait and sets an event, while the caller waits for the event and looks
at the cancel flag in between.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from zellige_ray.attention.polite import polite_threads
from zellige_ray.errors import CommError, Regroup

POLL_S = 0.01

T = TypeVar("T")


class Work(Protocol):
    """What torch's process groups return: something that blocks until it is done, or raises."""

    def wait(self) -> Any: ...


class Pending(Generic[T]):
    """A result that is on its way. `what` names it in errors."""

    __slots__ = ("_cancelled", "_deadline", "_done", "_fault", "_finally", "_result", "_timeout_s", "what")

    def __init__(self, result: T, what: str, timeout_s: float, cancelled: threading.Event) -> None:
        self._result = result
        self._done = threading.Event()
        self._fault: BaseException | None = None
        self._cancelled = cancelled
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._finally: Callable[[], T] | None = None
        self.what = what

    def then(self, make: Callable[[], T]) -> Pending[T]:
        """The same wait with another result, made by the thread that waits, once."""
        self._finally = make
        return self

    @classmethod
    def ready(cls, result: T) -> Pending[T]:
        """A result that is there already."""
        pending = cls(result, "nothing", 0.0, threading.Event())
        pending.finish(None)
        return pending

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def finish(self, fault: BaseException | None) -> None:
        """Called once, by whoever watches the transport."""
        self._fault = fault
        self._done.set()

    def wait(self) -> T:
        """The result, once it is complete; returns at once when it already is.

        Raises Regroup within 20 ms of a cancel, CommError (what, whom, how long) on a failure or after the time-out.
        """
        while not self._done.wait(POLL_S):
            if self._cancelled.is_set():
                raise Regroup(f"{self.what}: cancelled, a new epoch is coming")
            if time.monotonic() > self._deadline:
                raise CommError(f"{self.what}: no answer within {self._timeout_s:g} s (workers.comm_timeout_s)")
        if self._fault is not None:
            if self._cancelled.is_set():
                raise Regroup(f"{self.what}: cancelled, a new epoch is coming") from self._fault
            raise CommError(
                f"{self.what}: {_first_line(self._fault)} (time-out {self._timeout_s:g} s)"
            ) from self._fault
        if self._finally is not None:
            self._result, self._finally = self._finally(), None
        return self._result


class Waiter:
    """A daemon thread that waits for works in the order they were posted."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Pending[Any], list[Work], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        with polite_threads():
            self._thread.start()

    def watch(self, pending: Pending[Any], works: list[Work], keep: Any) -> None:
        """Finish `pending` when all works have; `keep` (the buffers) lives until then, whoever stops waiting."""
        self._queue.put((pending, works, keep))

    def stop(self) -> None:
        """End after the works that are queued; does not wait for them."""
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            pending, works, keep = item
            fault: BaseException | None = None
            while works:
                try:
                    works.pop(0).wait()
                except Exception as found:  # noqa: BLE001  carried to the caller of Pending.wait
                    fault = fault or found
            del item, keep  # sent buffers are gone when the caller goes on
            pending.finish(fault)
            del pending


def poll_until(ready: Callable[[], bool], what: str, timeout_s: float, cancelled: Callable[[], bool]) -> None:
    """Return when `ready()`; raises Regroup when cancelled, CommError after the time-out."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.0005
    while not ready():
        if cancelled():
            raise Regroup(f"{what}: cancelled, a new epoch is coming")
        if time.monotonic() > deadline:
            raise CommError(f"{what}: not there within {timeout_s:g} s (workers.comm_timeout_s)")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_S)


def meet(
    store: Any, members: Sequence[int], rank: int, name: str, timeout_s: float, cancelled: Callable[[], bool]
) -> None:
    """Return when all members have come to a place in the store: connecting after that takes milliseconds.

    Raises CommError naming the ranks that did not come, Regroup when cancelled.
    """
    store.set(f"{name}/here/{rank}", b"1")
    missing = [r for r in members if r != rank]

    def ready() -> bool:
        nonlocal missing
        missing = [r for r in missing if not store.check([f"{name}/here/{r}"])]
        return not missing

    try:
        poll_until(ready, f"rank {rank} meeting at {name}", timeout_s, cancelled)
    except Regroup:
        raise
    except CommError as fault:
        raise CommError(f"{fault}; ranks {missing} did not come") from None
    except RuntimeError as fault:
        raise CommError(f"rank {rank} meeting at {name}: the store does not answer: {fault}") from fault


def _first_line(fault: BaseException) -> str:
    text = str(fault).strip().splitlines()
    return text[0] if text else type(fault).__name__
