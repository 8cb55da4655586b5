"""Executors: other ways than the one exchange to run a cut sequence, for when memory binds; named in the plan.

The door for streaming ones (ring, StarTrail): one file with an `Executor`, one line in `executors`, one test. The
default, `exchange`, is the engine itself and has no entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.cuts import CutSequence
from zellige_ray.attention.kernels import Kernel
from zellige_ray.errors import EngineError


@dataclass(frozen=True, slots=True, eq=False)
class Streamed:
    """One rank's part of a cut sequence.

    start, stop: its rows of the packed buffer (none where it only has tiles), by ascending tokens, see
    `cut.homes[rank]`. next_key: keys for exchanges, the same ones in the same order on all ranks of the sequence.
    """

    cut: CutSequence
    rank: int
    heads: int
    start: int
    stop: int
    next_key: Callable[[], int]


class Executor(Protocol):
    """Attention of one cut sequence on all ranks that hold tokens or tiles of it."""

    def check(self, cut: CutSequence, heads: int) -> None:
        """EngineError where it can't run this tiling; called once, before anything is exchanged."""
        ...

    def attend(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, part: Streamed, comm: Comm, kernel: Kernel) -> Tensor:
        """Outputs of this rank's tokens, autograd-aware; every rank of the sequence calls it once per layer.

        Whatever it exchanges is waited for through `Pending`, so that a cancel reaches it. Partial results are merged
        in float32 or wider.
        """
        ...


executors: dict[str, Executor] = {}


def get_executor(name: str) -> Executor:
    """The executor of that name; EngineError names the known ones."""
    if name not in executors:
        raise EngineError(f"the plan names executor {name!r}, this engine has {sorted([*executors, 'exchange'])}")
    return executors[name]
