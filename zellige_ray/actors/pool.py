"""The pool: how a driver reaches its workers, as a protocol; what a call to all of them came to, as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from zellige_ray.actors.messages import Member, Reply


@dataclass(frozen=True, slots=True)
class Gathered:
    """What came of one call. missing: workers that have not answered yet. lost: worker -> why it is gone."""

    replies: Mapping[str, Reply]
    missing: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Everybody answered, and nobody was broken."""
        return not self.missing and not self.lost and all(r.status == "ok" for r in self.replies.values())

    def why(self) -> str:
        """One line: who is lost, broken or silent, and why."""
        parts = [f"{w} lost ({reason})" for w, reason in self.lost.items()]
        parts += [f"{w} broken ({r.reason})" for w, r in self.replies.items() if r.status == "broken"]
        parts += [f"{w} silent" for w in self.missing]
        return "; ".join(parts) or "complete"


class Pool(Protocol):
    """Workers by name. Calls never block longer than their time-out; an error inside a worker is raised by `gather`."""

    def start(self, count: int, min_count: int, checkpoint: str | None, timeout_s: float) -> list[Member]:
        """Starts `count` workers and waits until they are set up; raises PoolError with fewer than `min_count`."""
        ...

    def request(self, checkpoint: str | None) -> None:
        """Asks for one more worker, without waiting."""
        ...

    def arrived(self) -> list[Member]:
        """Requested workers that have been set up since the last call."""
        ...

    def store(self, epoch: int) -> Any:
        """The rendezvous of an epoch, as the workers' `connect` understands it."""
        ...

    def submit(self, method: str, args: Mapping[str, Sequence[Any]]) -> Any:
        """Calls `method` on each named worker with its own arguments; returns at once with a call to gather."""
        ...

    def gather(self, call: Any, timeout_s: float, first_fault: bool = True) -> Gathered:
        """Waits for the replies; with `first_fault` it returns as soon as one worker is lost or broken."""
        ...

    def cancel(self, workers: Sequence[str], epoch: int) -> None:
        """Tells workers, on their control lane, that every epoch before `epoch` is over."""
        ...

    def remove(self, worker: str) -> None:
        """Ends a worker's process; later calls to it are lost."""
        ...

    def close(self) -> None:
        """Ends every worker."""
        ...
