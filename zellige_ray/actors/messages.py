"""What driver and workers say to each other: frozen values, each order naming its epoch and the last decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from zellige_ray.data.index import SampleMeta
from zellige_ray.monitor.events import RankTimes
from zellige_ray.placement.plan import Plan


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as the driver knows it: where it runs and what it has. memory_bytes: what its rank may fill.

    version: of the package. model: hash of the parameters' names, shapes and types.
    """

    worker: str
    node: str
    pid: int
    device: str
    memory_bytes: int
    step: int
    version: str
    model: str


@dataclass(frozen=True, slots=True)
class Epoch:
    """A numbered membership: live workers in rank order. Every plan and every order names its number."""

    number: int
    members: tuple[Member, ...]

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(m.worker for m in self.members)

    def roll_call(self, limit: int = 8) -> str:
        """Names with process ids, for a person who looks for them."""
        names = [f"{m.worker} (pid {m.pid})" for m in self.members[:limit]]
        return ", ".join(names) + (f" and {self.size - limit} more" if self.size > limit else "")

    def node_of_rank(self) -> tuple[int, ...]:
        """Node number of each rank, nodes numbered by first appearance."""
        number: dict[str, int] = {}
        return tuple(number.setdefault(m.node, len(number)) for m in self.members)


@dataclass(frozen=True, slots=True)
class Decision:
    """The last decided step. update: False when its gradients were not finite: every rank leaves its weights alone."""

    step: int
    update: bool = True


@dataclass(frozen=True, slots=True)
class Invitation:
    """Form the communicator of an epoch. store: what `connect` of the worker understands.

    node_of_rank: where everybody sits, in rank order. seats: the first so many ranks hold the state, each a part that
    follows from where they sit; the others give them what they have.
    """

    epoch: int
    rank: int
    node_of_rank: tuple[int, ...]
    seats: int
    store: Any
    decided: Decision

    @property
    def size(self) -> int:
        return len(self.node_of_rank)


@dataclass(frozen=True, slots=True)
class Order:
    """Work on a plan. samples: those of the plan, in any order. steps: sampling steps, for previews only."""

    epoch: int
    decided: Decision
    plan: Plan
    samples: tuple[SampleMeta, ...]
    pass_: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer. `broken`: a peer was lost or the epoch is over, nothing counts, `reason` says why."""

    worker: str
    epoch: int
    status: Literal["ok", "broken"]
    value: Any = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Vote:
    """reduced(t): this rank holds the summed gradients of the step. loss, norm, finite: equal on all ranks.

    started: when the work began, Unix seconds.
    """

    step: int
    plan_hash: str
    started: float
    loss: float
    norm: float
    finite: bool
    lr: float
    seconds: float
    times: RankTimes


@dataclass(frozen=True, slots=True)
class Standing:
    """What a worker says to a driver that has lost its memory: the step it applied, and the vote it still holds."""

    member: Member
    epoch: int
    applied: int
    vote: Vote | None


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The value of a broken reply: samples that can't be read."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Starved:
    """The value of a broken reply: this worker's memory did not suffice. said: by its allocator."""

    said: str


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint that a worker writes in the background. done: all is on the disk, or `error` says why not."""

    step: int
    num_bytes: int
    done: bool = False
    error: str = ""
