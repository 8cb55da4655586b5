"""Packing: from where sequences go to the sorted arrays of a round."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as List

import numpy as np

from zellige_ray.placement.batch import Batch
from zellige_ray.placement.plan import IntArray, Round

ShardRow = tuple[int, int, int, int]
TileRow = tuple[int, int, int, int, int, int]


def pack_round(
    batch: Batch, heads: int, whole_S: IntArray, shards: List[ShardRow] = (), tiles: List[TileRow] = ()
) -> Round:
    """The round in which sequence i is whole on rank whole_S[i], or cut as the rows say where that is -1.

    shards: (sequence, rank, start, stop). tiles: (sequence, rank, head_start, head_stop, query_start, query_stop).
    """
    index_W = np.flatnonzero(whole_S >= 0)
    rank_W, stop_W = whole_S[index_W], batch.tokens_S[index_W]
    zero_W = np.zeros_like(rank_W)
    shards_K4 = np.stack([index_W, rank_W, zero_W, stop_W], axis=1)
    tiles_M6 = np.stack([index_W, rank_W, zero_W, np.full_like(rank_W, heads), zero_W, stop_W], axis=1)
    return Round(
        ids=batch.ids,
        tokens_S=batch.tokens_S,
        text_tokens_S=batch.text_tokens_S,
        shards_K4=_merge(shards_K4, np.array(sorted(shards), dtype=np.int64).reshape(-1, 4)),
        tiles_M6=_merge(tiles_M6, np.array(sorted(tiles), dtype=np.int64).reshape(-1, 6)),
    )


def even_cuts(total: int, parts: int) -> list[tuple[int, int]]:
    """[0, total) in `parts` intervals that differ by at most one; empty ones are kept."""
    cuts = [total * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(cuts))


def even_rows(
    index: int, tokens: int, heads: int, ranks: List[int], head_group: int = 1
) -> tuple[list[ShardRow], list[TileRow]]:
    """Rows of a sequence cut evenly over ranks: tokens into shards, heads (by head_group) into tiles of all queries."""
    pairs = zip(ranks, even_cuts(tokens, len(ranks)), strict=True)
    shards = [(index, rank, a, b) for rank, (a, b) in pairs if b > a]
    pairs = zip(ranks, even_cuts(heads // head_group, len(ranks)), strict=True)
    tiles = [(index, rank, a * head_group, b * head_group, 0, tokens) for rank, (a, b) in pairs if b > a]
    return shards, tiles


def _merge(whole: IntArray, cut: IntArray) -> IntArray:
    if not len(cut):
        return whole
    rows = np.concatenate([whole, cut])
    return rows[np.argsort(rows[:, 0], kind="stable")]
