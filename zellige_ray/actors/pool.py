"""The pool: how a driver reaches its workers, as a protocol; what a call to all of them came to, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from zellige_ray.actors.messages import Corrupt, Member, Reply, Standing, Starved


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

    @property
    def corrupt(self) -> tuple[str, ...]:
        """Samples that some worker could not read, by id."""
        found = {i for r in self.replies.values() if isinstance(r.value, Corrupt) for i in r.value.ids}
        return tuple(sorted(found))

    @property
    def starved(self) -> dict[str, str]:
        """Workers that ran out of memory, with what their allocators said."""
        return {w: r.value.said for w, r in self.replies.items() if isinstance(r.value, Starved)}

    def why(self) -> str:
        """One line: who is lost, broken or silent, and why."""
        parts = [f"{w} lost ({reason})" for w, reason in self.lost.items()]
        parts += [f"{w} broken ({r.reason})" for w, r in self.replies.items() if r.status == "broken"]
        parts += [f"{w} silent" for w in self.missing]
        return "; ".join(parts) or "complete"


@dataclass(frozen=True, slots=True)
class Adopted:
    """What a driver that starts again finds. epoch: the highest that anybody has seen. lost: worker -> why."""

    standings: Mapping[str, Standing]
    epoch: int
    lost: Mapping[str, str]


class Pool(Protocol):
    """Workers by name. Calls never block longer than their time-out; an error inside a worker is raised by `gather`."""

    def start(
        self, count: int, min_count: int, checkpoint: str | None, timeout_s: float, died: Callable[[str, str], None]
    ) -> list[Member]:
        """Has `count` workers, those included that are starting; waits until all that there is room for are set up.

        died: told about each worker whose process ended before it was set up, and why; another is asked for. Raises
        PoolError with fewer than `min_count`, what kept a worker from being set up, and what `died` raises.
        """
        ...

    def adopt(self, expected: Sequence[str], checkpoint: str | None) -> Adopted:
        """Finds the workers of a driver that is no more; those of `expected` that do not answer are lost."""
        ...

    def request(self, checkpoint: str | None) -> None:
        """Asks for one more worker, without waiting; it comes when there is room."""
        ...

    def requested(self) -> int:
        """Workers that were asked for and have not arrived."""
        ...

    def arrived(self, wait_s: float = 0.0) -> list[Member]:
        """Requested workers that have been set up since the last call."""
        ...

    def failed(self) -> dict[str, str]:
        """Requested workers that could not be set up since the last call, with the reason."""
        ...

    def leaving(self) -> dict[str, str]:
        """Workers on nodes that will go away, with the reason."""
        ...

    def room(self) -> str:
        """What the cluster has free, for a person."""
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
