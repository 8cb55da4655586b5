"""The coordinator: the meeting in an actor of its own, which also finds out who is gone, and hosts the ranks' store."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray

from zellige_ray.integrations.meeting import Arrival, Meeting, Verdict

LANES = 512  # threads of the actor: each worker blocks one while it waits for the others


class Coordinator:
    """Runs beside Ray Train's controller and dies with it."""

    def __init__(self, size: int, timeout_s: float, ping_interval_s: float, ping_timeout_s: float) -> None:
        from torch.distributed import TCPStore

        self._meeting = Meeting(size)
        self._timeout_s, self._interval_s, self._ping_timeout_s = timeout_s, ping_interval_s, ping_timeout_s
        self._store = TCPStore(ray.util.get_node_ip_address(), 0, None, is_master=True, wait_for_workers=False)
        self._handles: dict[str, Any] = {}
        self._came: set[str] = set()
        threading.Thread(target=self._watch, name="zellige-pings", daemon=True).start()

    def address(self) -> tuple[str, int]:
        """Of the store."""
        return ray.util.get_node_ip_address(), self._store.port

    def know(self, worker: str, handle: Any) -> None:
        """A worker that will come."""
        self._handles[worker] = handle

    def meet(self, arrival: Arrival) -> Verdict:
        """See `Meeting.meet`."""
        self._came.add(arrival.seat.worker)
        if arrival.epoch >= 0 and not arrival.ok:
            self._cancel(arrival.epoch + 1)  # the others need not find out by a time-out
        return self._meeting.meet(arrival, self._timeout_s)

    def leave(self, worker: str, finished: bool) -> None:
        """A worker whose training function has returned, or raised."""
        self._lose(worker, finished)

    def _watch(self) -> None:
        pending: dict[str, tuple[Any, float]] = {}
        while True:
            for worker in [w for w in list(self._came) if w in self._handles and w not in pending]:
                pending[worker] = self._handles[worker].execute.remote(_alive), time.monotonic()
            refs = {ref: worker for worker, (ref, _) in pending.items()}
            done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=self._interval_s) if refs else ([], [])
            for ref in done:
                worker = refs[ref]
                del pending[worker]
                try:
                    ray.get(ref)
                except ray.exceptions.RayActorError:
                    self._lose(worker)
                except ray.exceptions.RayError:  # it answered
                    continue
            for worker, (_, since) in list(pending.items()):
                if time.monotonic() - since > self._ping_timeout_s:
                    del pending[worker]
                    ray.kill(self._handles[worker])  # Ray puts another one in its place
                    self._lose(worker)
            time.sleep(self._interval_s)

    def _lose(self, worker: str, finished: bool = False) -> None:
        self._came.discard(worker)
        self._handles.pop(worker, None)
        before = self._meeting.epoch
        if self._meeting.lose(worker, finished) and not finished:
            self._cancel(before + 1)

    def _cancel(self, epoch: int) -> None:
        for handle in list(self._handles.values()):
            handle.execute.remote(_cancel, epoch)


def _alive() -> None:
    """The sign of life: the worker's main thread is free while it trains in another."""


def _cancel(epoch: int) -> None:
    from zellige_ray.integrations import here

    if here.session is not None:
        here.session.cancel(epoch)
