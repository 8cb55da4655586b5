"""Rank work: what a round asks of each rank, counted the way the engine will run it.

Segments of whole sequences run together where equal ones follow each other; a cut sequence is one unit per head and
rank, with the queries that the rank has for that head; messages go between every home and every tile rank of a
sequence, k and v once per head and rank.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from zellige_ray.placement.plan import FloatArray, IntArray, Round

Interval = tuple[int, int]
Segments = list[tuple[int, int, int]]  # (heads or repeats in all, queries, keys), equal neighbours merged


@dataclass(slots=True)
class RankWork:
    """One rank's part of a round. first, second: (count, length) runs of fillers by overlap part. units: (count,
    queries, keys) runs. captions: (queries, caption tokens) of each piece. rectangles: strided copies of one exchange.
    """

    tokens: int = 0
    text: int = 0
    pieces: int = 0
    first: list[tuple[int, int]] = field(default_factory=list)
    second: list[tuple[int, int]] = field(default_factory=list)
    units: Segments = field(default_factory=list)
    captions: list[tuple[int, int]] = field(default_factory=list)
    rectangles: int = 0
    own_q_rows: int = 0
    own_kv_rows: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RoundWork:
    """ranks: by rank. q_PP, kv_PP: (token, head) rows from home [row] to tile rank [column], own ones not counted."""

    ranks: list[RankWork]
    q_PP: FloatArray
    kv_PP: FloatArray


def count_work(round_: Round, size: int, joint: bool = False, text_first: bool = True) -> RoundWork:
    """The work of all ranks. joint: captions are part of the sequences' tokens, first or last."""
    ranks = [RankWork() for _ in range(size)]
    q_PP, kv_PP = np.zeros((size, size)), np.zeros((size, size))
    homes = _homes(round_.shards_K4)
    blocks = _blocks(round_.tiles_M6)
    second = set(round_.second)
    order = sorted(range(len(round_.ids)), key=lambda s: (-int(round_.tokens_S[s]), s))
    for s in order:
        n, text = int(round_.tokens_S[s]), int(round_.text_tokens_S[s])
        for rank, intervals in homes[s].items():
            _hold(ranks[rank], intervals, n, text, joint, text_first)
        if len(homes[s]) == 1 and homes[s].keys() == blocks[s].keys():
            (rank,) = homes[s]
            part = ranks[rank].second if round_.ids[s] in second else ranks[rank].first
            _add_run(part, n)
            continue
        for rank, rectangles in blocks[s].items():
            for heads, queries in rectangles:
                _add_unit(ranks[rank].units, heads, _length(queries), n)
                for home, intervals in homes[s].items():
                    met = _common(intervals, queries)
                    q, kv = heads * _length(met), heads * _length(intervals)
                    copies = len(met) + 2 * len(intervals)
                    ranks[home].rectangles += copies
                    if home == rank:
                        ranks[rank].own_q_rows += q
                        ranks[rank].own_kv_rows += kv
                    else:
                        ranks[rank].rectangles += copies
                        q_PP[home, rank] += q
                        kv_PP[home, rank] += kv
    return RoundWork(ranks, q_PP, kv_PP)


def _hold(rank: RankWork, intervals: Iterable[Interval], n: int, text: int, joint: bool, text_first: bool) -> None:
    """Tokens of one sequence for the token-wise layers."""
    for start, stop in intervals:
        rank.pieces += 1
        if joint:
            low, high = (0, text) if text_first else (n - text, n)
            owned = max(0, min(stop, high) - max(start, low))
            rank.tokens += stop - start - owned
            rank.text += owned
        else:
            rank.tokens += stop - start
            rank.text += text
            rank.captions.append((stop - start, max(1, text)))


def _homes(shards_K4: IntArray) -> Mapping[int, dict[int, list[Interval]]]:
    """sequence -> rank -> its token intervals, those that touch made one."""
    out: defaultdict[int, dict[int, list[Interval]]] = defaultdict(dict)
    for s, rank, start, stop in shards_K4.tolist():
        _join(out[s].setdefault(rank, []), start, stop)
    return out


def _blocks(tiles_M6: IntArray) -> Mapping[int, dict[int, list[tuple[int, list[Interval]]]]]:
    """sequence -> rank -> (heads, query intervals) of its head ranges with equal queries."""
    tiles: defaultdict[int, dict[int, list[list[int]]]] = defaultdict(dict)
    for s, rank, *rectangle in tiles_M6.tolist():
        tiles[s].setdefault(rank, []).append(rectangle)
    return {s: {rank: _head_ranges(rows) for rank, rows in by_rank.items()} for s, by_rank in tiles.items()}


def _head_ranges(rectangles: list[list[int]]) -> list[tuple[int, list[Interval]]]:
    edges = sorted({x for h0, h1, _, _ in rectangles for x in (h0, h1)})
    out: list[tuple[int, list[Interval]]] = []
    for low, high in itertools.pairwise(edges):
        queries: list[Interval] = []
        for h0, h1, q0, q1 in sorted(rectangles, key=lambda r: r[2]):
            if h0 <= low and high <= h1:
                _join(queries, q0, q1)
        if queries:
            out.append((high - low, queries))
    return out


def _join(intervals: list[Interval], start: int, stop: int) -> None:
    if intervals and intervals[-1][1] == start:
        intervals[-1] = (intervals[-1][0], stop)
    else:
        intervals.append((start, stop))


def _add_run(runs: list[tuple[int, int]], n: int) -> None:
    if runs and runs[-1][1] == n:
        runs[-1] = (runs[-1][0] + 1, n)
    else:
        runs.append((1, n))


def _add_unit(runs: Segments, heads: int, queries: int, keys: int) -> None:
    if runs and runs[-1][1:] == (queries, keys):
        runs[-1] = (runs[-1][0] + heads, queries, keys)
    else:
        runs.append((heads, queries, keys))


def _common(left: list[Interval], right: list[Interval]) -> list[Interval]:
    return [(max(a, c), min(b, d)) for a, b in left for c, d in right if max(a, c) < min(b, d)]


def _length(intervals: list[Interval]) -> int:
    return sum(b - a for a, b in intervals)
