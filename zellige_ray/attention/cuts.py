"""Cuts: the sequences that more than one rank works on, as intervals per home and head blocks per tile rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from zellige_ray.errors import PlanError
from zellige_ray.placement.plan import DEFAULT_EXECUTOR, Round

Interval = tuple[int, int]


class Block(NamedTuple):
    """Heads [head_start, head_stop) of a sequence on one rank, with the same query intervals for each of them."""

    head_start: int
    head_stop: int
    queries: tuple[Interval, ...]

    @property
    def heads(self) -> int:
        return self.head_stop - self.head_start

    @property
    def num_queries(self) -> int:
        return sum(stop - start for start, stop in self.queries)


@dataclass(frozen=True, slots=True, eq=False)
class CutSequence:
    """homes: rank -> its token intervals, ascending and merged. blocks: rank -> its head blocks, ascending heads."""

    sequence: int
    length: int
    executor: str
    homes: dict[int, tuple[Interval, ...]]
    blocks: dict[int, tuple[Block, ...]]

    @property
    def ranks(self) -> set[int]:
        return self.homes.keys() | self.blocks.keys()


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """Which sequences of a round are whole on one rank (owner_S >= 0) and which are cut (owner_S == -1)."""

    owner_S: NDArray[np.int64]
    cut_S: NDArray[np.int64]


def divide(round_: Round) -> Division:
    """Whole on one rank means: all its shards and all its tiles are there. Raises PlanError for one that has none."""
    S = len(round_.ids)
    low_S = np.full(S, np.iinfo(np.int64).max)
    high_S = np.full(S, -1)
    for name, rows in (("shard", round_.shards_K4), ("tile", round_.tiles_M6)):
        if rows.size and (rows[:, 0].min() < 0 or rows[:, 0].max() >= S):
            raise PlanError(f"a {name} names sequence {int(rows[:, 0].max())}, the round has {S}")
        if np.bincount(rows[:, 0], minlength=S).min(initial=1) == 0:
            missing = int(np.flatnonzero(np.bincount(rows[:, 0], minlength=S) == 0)[0])
            raise PlanError(f"sequence {round_.ids[missing]} has no {name}")
        np.minimum.at(low_S, rows[:, 0], rows[:, 1])
        np.maximum.at(high_S, rows[:, 0], rows[:, 1])
    return Division(np.where(low_S == high_S, low_S, -1), np.flatnonzero(low_S != high_S))


def cut_sequences(round_: Round, division: Division) -> Iterator[CutSequence]:
    """The cut sequences, ascending."""
    is_cut_S = division.owner_S < 0
    shards: dict[int, list[list[int]]] = {int(s): [] for s in division.cut_S}
    tiles: dict[int, list[list[int]]] = {int(s): [] for s in division.cut_S}
    for row in round_.shards_K4[is_cut_S[round_.shards_K4[:, 0]]].tolist():
        shards[row[0]].append(row[1:])
    for row in round_.tiles_M6[is_cut_S[round_.tiles_M6[:, 0]]].tolist():
        tiles[row[0]].append(row[1:])
    for s in shards:
        homes: dict[int, list[Interval]] = {}
        for rank, start, stop in shards[s]:
            homes.setdefault(rank, []).append((start, stop))
        by_rank: dict[int, list[list[int]]] = {}
        for rank, *rectangle in tiles[s]:
            by_rank.setdefault(rank, []).append(rectangle)
        yield CutSequence(
            sequence=s,
            length=int(round_.tokens_S[s]),
            executor=round_.executors.get(round_.ids[s], DEFAULT_EXECUTOR),
            homes={rank: merged(intervals) for rank, intervals in sorted(homes.items())},
            blocks={rank: _blocks(rectangles) for rank, rectangles in sorted(by_rank.items())},
        )


def components(cuts: list[CutSequence]) -> tuple[tuple[int, ...], ...]:
    """Ranks that must meet: connected components of the ranks that share a cut sequence, each and all ascending."""
    graph: nx.Graph = nx.Graph()
    for cut in cuts:
        first, *rest = sorted(cut.ranks)
        graph.add_edges_from((first, rank) for rank in rest)
    return tuple(sorted(tuple(sorted(c)) for c in nx.connected_components(graph)))


def merged(intervals: list[Interval]) -> tuple[Interval, ...]:
    """Ascending intervals, those that touch made one."""
    out: list[Interval] = []
    for start, stop in sorted(intervals):
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], stop)
        else:
            out.append((start, stop))
    return tuple(out)


def intersect(left: tuple[Interval, ...], right: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """What two ascending lists of disjoint intervals have in common."""
    out = [(max(a, c), min(b, d)) for a, b in left for c, d in right if max(a, c) < min(b, d)]
    return tuple(out)


def _blocks(rectangles: list[list[int]]) -> tuple[Block, ...]:
    """Elementary head ranges of a rank's tiles; equal neighbours are one block."""
    edges = sorted({r[0] for r in rectangles} | {r[1] for r in rectangles})
    out: list[Block] = []
    for low, high in itertools.pairwise(edges):
        queries = merged([(q0, q1) for h0, h1, q0, q1 in rectangles if h0 <= low and high <= h1])
        if not queries:
            continue
        if out and out[-1].head_stop == low and out[-1].queries == queries:
            out[-1] = Block(out[-1].head_start, high, queries)
        else:
            out.append(Block(low, high, queries))
    return tuple(out)
