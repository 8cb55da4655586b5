"""Segments: which rows of a packed buffer attend to which, as runs of equal shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zellige_ray.errors import EngineError


class Run(NamedTuple):
    """`repeats` consecutive segments of the same shape: rows q_start + i * queries, k_start + i * keys."""

    q_start: int
    k_start: int
    repeats: int
    queries: int
    keys: int


@dataclass(frozen=True, slots=True)
class Segments:
    """Attention of packed rows: segment i attends with its queries to its keys and to nothing else.

    runs: in packed order, without gaps, without empty segments. num_q, num_k: rows in all. bucketed: whether a kernel
    that launches for its longest segment splits the call by length; only benchmarks say no.
    """

    runs: tuple[Run, ...]
    num_q: int
    num_k: int
    bucketed: bool = True

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """(queries, keys) of every segment."""
        return tuple((run.queries, run.keys) for run in self.runs for _ in range(run.repeats))

    def shifted(self, start: int, stop: int) -> Segments:
        """Runs [start, stop) as segments of their own rows."""
        runs = self.runs[start:stop]
        if not runs:
            return Segments((), 0, 0)
        q0, k0, last = runs[0].q_start, runs[0].k_start, runs[-1]
        moved = tuple(run._replace(q_start=run.q_start - q0, k_start=run.k_start - k0) for run in runs)
        return Segments(
            moved, last.q_start + last.repeats * last.queries - q0, last.k_start + last.repeats * last.keys - k0
        )


def pack_segments(lengths: Sequence[tuple[int, int, int]]) -> Segments:
    """Segments of (count, queries, keys), one after the other; neighbours of equal shape become one run.

    Segments without queries hold no q rows and are left out when they hold no keys either; EngineError for queries
    without keys and for keys that nobody attends to.
    """
    runs: list[Run] = []
    q = k = 0
    for count, queries, keys in lengths:
        if count == 0 or (queries == 0 and keys == 0):
            continue
        if queries == 0 or keys == 0:
            raise EngineError(
                f"a segment of {queries} queries and {keys} keys can't be attended; both must be positive"
            )
        if runs and runs[-1].queries == queries and runs[-1].keys == keys:
            runs[-1] = runs[-1]._replace(repeats=runs[-1].repeats + count)
        else:
            runs.append(Run(q, k, count, queries, keys))
        q, k = q + count * queries, k + count * keys
    return Segments(tuple(runs), q, k)
