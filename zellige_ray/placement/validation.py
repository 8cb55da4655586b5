"""Validation: every token on one rank, every attention cell in one tile, nothing outside the world."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.model import ModelPreset
from zellige_ray.placement.plan import IntArray, Plan, Round, plan_hash
from zellige_ray.placement.sequence import Sequence


def validate(plan: Plan, sequences: Iterable[Sequence], model: ModelPreset, cluster: Cluster) -> None:
    """Raises PlanError naming the sequence and what is missing, doubled or misplaced, or that the plan was changed."""
    if plan.world_size != cluster.world_size:
        raise PlanError(f"plan is for {plan.world_size} ranks, the cluster has {cluster.world_size}")
    if plan.hash != plan_hash(plan.world_size, plan.rounds):
        raise PlanError(f"plan {plan.hash[:12]} was changed after it was made: its hash no longer fits its rounds")
    joint = model.text == "joint"
    want = sorted((s.id, s.tokens + s.text_tokens if joint else s.tokens, s.text_tokens) for s in sequences)
    validate_lengths(plan, want)
    for round_ in plan.rounds:
        validate_round(round_, plan.world_size, model)


def validate_lengths(plan: Plan, want: list[tuple[str, int, int]]) -> None:
    """Raises PlanError unless the plan holds exactly these (id, attention length, text tokens), sorted."""
    rounds = plan.rounds
    rows = [zip(r.ids, r.tokens_S.tolist(), r.text_tokens_S.tolist(), strict=True) for r in rounds]
    got = sorted(row for part in rows for row in part)
    if got != want:
        odd = sorted(set(got) ^ set(want)) or sorted(x for x in set(got) if got.count(x) != want.count(x))
        raise PlanError(
            f"plan and batch differ: {len(got)} sequences planned, {len(want)} in the batch; "
            f"first difference (id, tokens, text_tokens): {odd[0]}"
        )


def validate_round(round_: Round, world_size: int, model: ModelPreset) -> None:
    """Raises PlanError unless shards cover all tokens and tiles all heads x queries of each sequence, once."""
    shards, tiles = round_.shards_K4, round_.tiles_M6
    if len(round_.ids) and round_.tokens_S.min() < 1:
        k = int(round_.tokens_S.argmin())
        raise PlanError(f"sequence {round_.ids[k]}: tokens is {round_.tokens_S[k]}, it must be at least 1")
    for name, rows in (("shard", shards), ("tile", tiles)):
        _require(round_, rows, (rows[:, 0] >= 0) & (rows[:, 0] < len(round_.ids)), f"{name} of no sequence")
        fits = (rows[:, 1] >= 0) & (rows[:, 1] < world_size)
        _require(round_, rows, fits, f"{name} on a rank outside the world of {world_size}")
    order = np.lexsort((shards[:, 2], shards[:, 0]))
    _cover_lines(round_, shards[order, 0], shards[order, 2], shards[order, 3], round_.tokens_S, "tokens")
    limit = round_.tokens_S[tiles[:, 0]]
    inside = (tiles[:, 2] >= 0) & (tiles[:, 3] <= model.heads) & (tiles[:, 4] >= 0) & (tiles[:, 5] <= limit)
    _require(round_, tiles, inside, f"tile outside {model.heads} heads x all queries")
    if round_.first or round_.second:
        _fillers_once(round_)
    _require(round_, tiles, (tiles[:, 2] < tiles[:, 3]) & (tiles[:, 4] < tiles[:, 5]), "empty tile")
    group = model.head_group
    if group > 1:
        aligned = (tiles[:, 2] % group == 0) & (tiles[:, 3] % group == 0)
        _require(round_, tiles, aligned, f"tile not cut at a multiple of {group} heads (heads / kv_heads)")
    partial = np.unique(tiles[(tiles[:, 4] != 0) | (tiles[:, 5] != limit), 0])
    full = tiles[~np.isin(tiles[:, 0], partial)] if len(partial) else tiles
    order = np.lexsort((full[:, 2], full[:, 0]))
    heads_S = np.full(len(round_.ids), model.heads)
    _cover_lines(round_, full[order, 0], full[order, 2], full[order, 3], heads_S, "attention heads", partial)
    if len(partial):
        rows = tiles[np.isin(tiles[:, 0], partial)]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        borders = np.searchsorted(rows[:, 0], [*partial.tolist(), len(round_.ids)]).tolist()
        for index, (a, b) in zip(partial.tolist(), itertools.pairwise(borders), strict=True):
            _cover_grid(round_, index, rows[a:b, 2:], model.heads)


def _fillers_once(round_: Round) -> None:
    """Raises PlanError unless overlap names whole sequences of the round, each once."""
    named = [*round_.first, *round_.second]
    cut = np.bincount(round_.shards_K4[:, 0], minlength=len(round_.ids)) > 1
    whole = {name for name, several in zip(round_.ids, cut.tolist(), strict=True) if not several}
    if len(set(named)) != len(named) or not whole.issuperset(named):
        odd = next((x for x in named if x not in whole), None) or next(x for x in named if named.count(x) > 1)
        raise PlanError(f"sequence {odd}: overlap names it, but it is cut, named twice or not in the round")


def _require(round_: Round, rows: IntArray, good: np.ndarray, what: str) -> None:
    if not good.all():
        row = rows[int(np.argmin(good))].tolist()
        name = round_.ids[row[0]] if 0 <= row[0] < len(round_.ids) else f"#{row[0]}"
        raise PlanError(f"sequence {name}: {what}: rank {row[1]}, {row[2:]}")


def _cover_lines(
    round_: Round,
    owner: IntArray,
    start: IntArray,
    stop: IntArray,
    total_S: IntArray,
    what: str,
    skip: IntArray | None = None,
) -> None:
    """Raises PlanError unless the intervals of each owner, sorted by start, tile [0, total) without gap or overlap."""
    num = len(total_S)
    begin, end = np.searchsorted(owner, np.arange(num), "left"), np.searchsorted(owner, np.arange(num), "right")
    bad_S = begin == end
    if skip is not None and len(skip):
        bad_S[skip] = False
    has = begin < end
    bad_S[has] |= (start[begin[has]] != 0) | (stop[end[has] - 1] != total_S[has])
    same = owner[1:] == owner[:-1]
    bad_S[owner[1:][same & (start[1:] != stop[:-1])]] = True
    bad_S[owner[start >= stop]] = True
    if bad_S.any():
        k = int(np.argmax(bad_S))
        cuts = list(zip(start[owner == k].tolist(), stop[owner == k].tolist(), strict=True))
        raise PlanError(f"sequence {round_.ids[k]}: {what} not covered once: [0, {total_S[k]}) by {cuts[:8]}")


def _cover_grid(round_: Round, index: int, rects: IntArray, heads: int) -> None:
    """Raises PlanError unless the rectangles (h0, h1, q0, q1) tile heads x queries of one sequence."""
    tokens = int(round_.tokens_S[index])
    edges = sorted({0, tokens, *rects[:, 2].tolist(), *rects[:, 3].tolist()})
    rows = rects[np.argsort(rects[:, 0], kind="stable")].tolist()
    for low, high in itertools.pairwise(edges):
        at = 0
        for h0, h1, q0, q1 in rows:
            if q0 <= low and q1 >= high:
                if h0 != at:
                    at = -1
                    break
                at = h1
        if at != heads:
            raise PlanError(
                f"sequence {round_.ids[index]}: attention of queries [{low}, {high}) not covered once "
                f"by heads [0, {heads})"
            )
