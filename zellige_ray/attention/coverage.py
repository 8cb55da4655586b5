"""Coverage: every token of a round is owned once, every cell of its attention computed once, or nothing is run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.plan import Round


def check_coverage(round_: Round, heads: int) -> None:
    """Raises PlanError naming the sequence whose tokens or (head, query) cells are missing, doubled or outside."""
    S = len(round_.ids)
    tokens_S, shards_K4, tiles_M6 = round_.tokens_S, round_.shards_K4, round_.tiles_M6
    num_shards_S = np.bincount(shards_K4[:, 0], minlength=S)
    num_tiles_S = np.bincount(tiles_M6[:, 0], minlength=S)
    length_K, length_M = tokens_S[shards_K4[:, 0]], tokens_S[tiles_M6[:, 0]]
    full_K = (shards_K4[:, 2] == 0) & (shards_K4[:, 3] == length_K)
    full_M = (tiles_M6[:, 2] == 0) & (tiles_M6[:, 3] == heads) & (tiles_M6[:, 4] == 0) & (tiles_M6[:, 5] == length_M)
    tokens_ok_S, cells_ok_S = np.zeros(S, dtype=bool), np.zeros(S, dtype=bool)
    tokens_ok_S[shards_K4[full_K, 0]] = True
    cells_ok_S[tiles_M6[full_M, 0]] = True
    for s in np.flatnonzero(~(tokens_ok_S & (num_shards_S == 1))).tolist():
        rows = shards_K4[shards_K4[:, 0] == s]
        if not _covers(map(tuple, rows[:, 2:].tolist()), int(tokens_S[s])):
            raise PlanError(
                f"tokens of sequence {round_.ids[s]} (length {tokens_S[s]}) are not owned exactly once: "
                f"{rows[:, 1:].tolist()}"
            )
    for s in np.flatnonzero(~(cells_ok_S & (num_tiles_S == 1))).tolist():
        rows = tiles_M6[tiles_M6[:, 0] == s]
        if not _covers_grid(rows[:, 2:].tolist(), heads, int(tokens_S[s])):
            raise PlanError(
                f"attention of sequence {round_.ids[s]} ({heads} heads, length {tokens_S[s]}) is not computed "
                f"exactly once: {rows[:, 1:].tolist()}"
            )


def _covers(intervals: Iterable[tuple[int, ...]], length: int) -> bool:
    at = 0
    for start, stop in sorted(intervals):
        if start != at or stop <= start:
            return False
        at = stop
    return at == length


def _covers_grid(rectangles: list[list[int]], heads: int, length: int) -> bool:
    edges = sorted({r[0] for r in rectangles} | {r[1] for r in rectangles} | {0, heads})
    if edges[0] < 0 or edges[-1] > heads:
        return False
    return all(
        _covers(((q0, q1) for h0, h1, q0, q1 in rectangles if h0 <= low and high <= h1), length)
        for low, high in itertools.pairwise(edges)
    ) and all(h0 < h1 for h0, h1, _, _ in rectangles)
