"""Moving: a state from the ranks that hold it to the places of a new epoch, interval by interval, between two steps.

Every rank says what it holds: its own part, and copies of others. From that table, which all see alike, each works out
who sends what to whom. Nothing is taken over before everything is there, so that a move that breaks is begun again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from zellige_ray.attention.comm import Comm
from zellige_ray.training.layouts.content import WEIGHT, Content
from zellige_ray.training.layouts.place import Place
from zellige_ray.training.layouts.units import Unit

FIRST_KEY = 1 << 29


@dataclass(frozen=True, slots=True)
class Holding:
    """That a rank holds what a place gives, as of a step. kinds: of vectors, with their types, beside the weights.

    counters: of the optimizer, by unit.
    """

    step: int
    place: Place
    kinds: tuple[tuple[str, str], ...]
    counters: tuple[tuple[tuple[str, float], ...], ...]

    @classmethod
    def of(cls, step: int, place: Place, contents: Sequence[Content]) -> Holding:
        """What is said of contents that are held."""
        kinds = {k: str(v.dtype).removeprefix("torch.") for c in contents for k, v in c.vectors.items() if k != WEIGHT}
        return cls(step, place, tuple(kinds.items()), tuple(tuple(c.counters.items()) for c in contents))


Held = tuple[Holding, Sequence[Content]]
Table = tuple[tuple[Holding, ...], ...]  # of each rank
Route = tuple[int, int, int, int]  # start, stop, rank that sends, which of its holdings


def announce(comm: Comm | None, mine: Sequence[Holding]) -> Table:
    """What every rank holds, on every rank. Raises CommError or Regroup."""
    if comm is None:
        return (tuple(mine),)
    data = json.dumps([asdict(h) for h in mine]).encode()
    longest = torch.tensor([len(data)], dtype=torch.int64, device=comm.device)
    length = int(comm.all_reduce(longest, op="max").wait())
    text = torch.full((comm.size * length,), ord(" "), dtype=torch.uint8, device=comm.device)
    start = comm.rank * length
    text[start : start + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(comm.device)
    comm.all_gather(text, range(comm.size)).wait()
    return tuple(tuple(map(_parse, json.loads(bytes(row.tolist())))) for row in text.view(comm.size, length).cpu())


def newest(table: Table, limit: int, lengths: Sequence[int]) -> int | None:
    """The newest step up to `limit` of which the ranks together hold everything; None when there is none.

    lengths: of the units' vectors.
    """
    steps = sorted({h.step for held in table for h in held if h.step <= limit}, reverse=True)
    return next((s for s in steps if all(_covered(table, s, num) for num in set(lengths))), None)


def move(
    comm: Comm | None, table: Table, mine: Sequence[Held], step: int, target: Place, units: Sequence[Unit]
) -> list[Content]:
    """What `target` gives this rank of the state as of `step`, by unit; the ranks together must hold it all.

    A rank behind those of the target gives what it holds, and gets nothing. mine: this rank's row of the table, with
    what it stands for. Vectors that stay as they are are not copied. Raises CommError or Regroup.
    """
    one = next(h for held in table for h in held if h.step == step)
    key, out = FIRST_KEY, []
    for number, unit in enumerate(units):
        content = Content({}, dict(one.counters[number]))
        routes = plan(table, step, target, unit.num)
        kinds = {WEIGHT: unit.dtype, **{k: getattr(torch, d) for k, d in one.kinds if unit.trained}}
        for kind, dtype in kinds.items():
            vectors = [contents[number].vectors[kind] if h.step == step else None for h, contents in mine]
            content.vectors[kind] = _moved(comm, routes, mine, vectors, target.rank, dtype, unit, key)
            key += 1
        out.append(content)
    return out


@functools.lru_cache(maxsize=256)
def plan(table: Table, step: int, target: Place, num: int) -> tuple[tuple[Route, ...], ...]:
    """Where each rank's new interval of one vector comes from, ascending; its own copy first, then ranks behind it."""
    size = len(target.node_of_rank)
    sources = [
        (*h.place.interval(num), rank, i)
        for rank, held in enumerate(table)
        for i, h in enumerate(held)
        if h.step == step
    ]
    out = []
    for rank in range(size):
        near = sorted(sources, key=lambda s, rank=rank: ((s[2] - rank) % len(table), s[3]))  # type: ignore[misc]
        at, stop = target.of(rank).interval(num)
        routes: list[Route] = []
        while at < stop:
            found = next((s for s in near if s[0] <= at < s[1]), None)
            if found is None:
                raise ValueError(f"nobody holds element {at} of a vector of {num} at step {step}")
            routes.append((at, min(stop, found[1]), found[2], found[3]))
            at = routes[-1][1]
        out.append(tuple(routes))
    return tuple(out)


def _covered(table: Table, step: int, num: int) -> bool:
    at = 0
    for start, stop in sorted(h.place.interval(num) for held in table for h in held if h.step == step):
        at = max(at, stop) if start <= at else at
    return at >= num


def _moved(
    comm: Comm | None,
    routes: Sequence[Sequence[Route]],
    mine: Sequence[Held],
    vectors: Sequence[Tensor | None],
    rank: int,
    dtype: torch.dtype,
    unit: Unit,
    key: int,
) -> Tensor:
    def held(start: int, stop: int, which: int) -> Tensor:
        vector, first = vectors[which], mine[which][0].place.interval(unit.num)[0]
        assert vector is not None
        return vector[start - first : stop - first]

    own = routes[rank] if rank < len(routes) else ()
    if len(own) == 1 and own[0][2] == rank and vectors[own[0][3]] is not None:
        start, stop, _, which = own[0]
        values = held(start, stop, which).to(unit.device)
        whole = values.numel() == vectors[which].numel()  # type: ignore[union-attr]
        out = values if whole else values.clone()
    else:
        out = torch.empty(sum(r[1] - r[0] for r in own), dtype=dtype, device=unit.device)
    if comm is None:
        return out
    sends: dict[int, Tensor] = {}
    for peer, wanted in enumerate(routes):
        parts = [held(a, b, which) for a, b, source, which in wanted if source == rank and peer != rank]
        if parts:
            sends[peer] = torch.cat(parts).to(comm.device)
    sizes: dict[int, int] = {}
    for a, b, source, _ in own:
        if source != rank:
            sizes[source] = sizes.get(source, 0) + b - a
    come = {source: torch.empty(n, dtype=dtype, device=comm.device) for source, n in sizes.items()}
    comm.transfer(sends, come, key).wait()
    if come or len(own) > 1:
        at = dict.fromkeys(come, 0)
        base = own[0][0]
        for a, b, source, which in own:
            if source == rank:
                out[a - base : b - base] = held(a, b, which)
            else:
                out[a - base : b - base] = come[source][at[source] : at[source] + b - a]
                at[source] += b - a
    return out


def _parse(value: Mapping[str, Any]) -> Holding:
    place = value["place"]
    return Holding(
        int(value["step"]),
        Place(place["layout"], tuple(place["node_of_rank"]), place["rank"]),
        tuple((k, d) for k, d in value["kinds"]),
        tuple(tuple((k, v) for k, v in unit) for unit in value["counters"]),
    )
