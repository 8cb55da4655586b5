"""Tilings: random valid rounds of every kind the engine must run, for tests, benchmarks and users' own checks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from zellige_ray.placement.plan import Round

kinds = ("whole", "heads", "queries", "grid", "uneven", "shared", "far", "scattered")


def random_round(
    rng: np.random.Generator,
    lengths: Sequence[int],
    world: int,
    heads: int,
    text_lengths: Sequence[int] | None = None,
    idle: Sequence[int] = (),
    tokenless: Sequence[int] = (),
    use: Sequence[str] = kinds,
) -> Round:
    """A valid round of these sequences.

    idle: ranks that get nothing. tokenless: ranks that get tiles but no tokens (where others exist). use: the kinds to
    draw from: whole; heads split; queries split; grid of both; uneven anything; heads shared by two ranks through their
    queries; tiles far from their tokens; several intervals per rank.
    """
    working = [r for r in range(world) if r not in idle]
    owners = [r for r in working if r not in tokenless] or working
    shards: list[tuple[int, int, int, int]] = []
    tiles: list[tuple[int, int, int, int, int, int]] = []
    for s, n in enumerate(lengths):
        kind = use[int(rng.integers(len(use)))]
        homes = _some(rng, owners)
        if kind == "whole":
            homes = homes[:1]
        cuts = _cuts(rng, n, len(homes) * (2 if kind == "scattered" else 1), even=kind in ("heads", "queries", "grid"))
        shards += [(s, homes[i % len(homes)], a, b) for i, (a, b) in enumerate(cuts)]
        if kind == "whole":
            tiles.append((s, homes[0], 0, heads, 0, n))
            continue
        tile_ranks = [r for r in working if r not in homes] if kind == "far" else []
        tile_ranks = tile_ranks or _some(rng, working)
        tiles += [(s, *tile) for tile in _tiles(rng, kind, tile_ranks, heads, n)]
    return Round(
        ids=tuple(f"s{i}" for i in range(len(lengths))),
        tokens_S=np.array(lengths, dtype=np.int64),
        text_tokens_S=np.array(text_lengths if text_lengths is not None else [0] * len(lengths), dtype=np.int64),
        shards_K4=np.array(sorted(shards), dtype=np.int64).reshape(-1, 4),
        tiles_M6=np.array(sorted(tiles), dtype=np.int64).reshape(-1, 6),
    )


def whole_round(
    lengths: Sequence[int], ranks: Sequence[int], heads: int, text_lengths: Sequence[int] | None = None
) -> Round:
    """The round in which sequence i is whole on ranks[i]."""
    return Round(
        ids=tuple(f"s{i}" for i in range(len(lengths))),
        tokens_S=np.array(lengths, dtype=np.int64),
        text_tokens_S=np.array(text_lengths if text_lengths is not None else [0] * len(lengths), dtype=np.int64),
        shards_K4=np.array(
            [(s, r, 0, n) for s, (r, n) in enumerate(zip(ranks, lengths, strict=True))], dtype=np.int64
        ).reshape(-1, 4),
        tiles_M6=np.array(
            [(s, r, 0, heads, 0, n) for s, (r, n) in enumerate(zip(ranks, lengths, strict=True))], dtype=np.int64
        ).reshape(-1, 6),
    )


def _tiles(
    rng: np.random.Generator, kind: str, ranks: list[int], heads: int, n: int
) -> list[tuple[int, int, int, int, int]]:
    """(rank, head_start, head_stop, query_start, query_stop) that cover heads x n once."""
    if kind == "heads":
        return [(r, a, b, 0, n) for r, (a, b) in zip(ranks, _cuts(rng, heads, len(ranks), even=True), strict=False)]
    if kind == "queries":
        return [(r, 0, heads, a, b) for r, (a, b) in zip(ranks, _cuts(rng, n, len(ranks), even=True), strict=False)]
    out: list[tuple[int, int, int, int, int]] = []
    at = int(rng.integers(len(ranks)))
    if kind == "shared":  # every head range is shared by two ranks through its queries
        for a, b in _cuts(rng, heads, max(1, len(ranks) - 1), even=False):
            for q0, q1 in _cuts(rng, n, 2, even=False):
                out.append((ranks[at % len(ranks)], a, b, q0, q1))
                at += 1
            at -= 1
        return out
    for a, b in _cuts(rng, heads, int(rng.integers(1, 3)), even=kind == "grid"):
        for q0, q1 in _cuts(rng, n, int(rng.integers(1, len(ranks) + 1)), even=kind == "grid"):
            out.append((ranks[at % len(ranks)], a, b, q0, q1))
            at += 1
    return out


def _some(rng: np.random.Generator, ranks: Sequence[int]) -> list[int]:
    """At least one of the ranks, in any order."""
    order = [int(r) for r in rng.permutation(list(ranks))]
    return order[: int(rng.integers(1, len(order) + 1))]


def _cuts(rng: np.random.Generator, n: int, parts: int, even: bool) -> list[tuple[int, int]]:
    """[0, n) in at most `parts` intervals, none empty."""
    parts = min(parts, n)
    edges = (
        [round(i * n / parts) for i in range(parts + 1)]
        if even
        else sorted({0, n, *(int(x) for x in rng.integers(0, n + 1, parts - 1))})
    )
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]
