"""Replicas: gradients summed across groups that each hold a whole copy, also where the groups are cut differently."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zellige_ray.attention.comm import Comm
from zellige_ray.training.layouts.place import Place
from zellige_ray.training.layouts.units import Unit

BUCKET_BYTES = 16 << 20  # of one message where every rank holds everything
FIRST_KEY = 1 << 29  # of transfers; the engine's keys are below


@dataclass(frozen=True, slots=True)
class Share:
    """An interval [start, stop) of a unit's vector: who holds a copy, one rank per group, and which of them adds up."""

    start: int
    stop: int
    holders: tuple[int, ...]
    adder: int


def sum_replicas(comm: Comm, place: Place, units: Sequence[Unit]) -> None:
    """Sums each unit's `own_grad` over the groups, in place; equal bits on all ranks that hold the same interval.

    Raises CommError or Regroup, and leaves gradients undefined.
    """
    if len(place.groups) == len(place.node_of_rank):  # everybody holds everything
        pendings = [comm.all_reduce(part) for u in units for part in _buckets(u.own_grad)]
        for pending in pendings:
            pending.wait()
    elif len(place.groups) > 1:
        for number, unit in enumerate(units):
            _sum(comm, unit, shares(place, unit.num), FIRST_KEY + 2 * number)


@functools.lru_cache(maxsize=1024)
def shares(place: Place, num: int) -> tuple[Share, ...]:
    """Those of one vector that the rank of `place` holds a copy of, ascending.

    The work of adding an interval up is spread evenly over its holders.
    """
    intervals = {r: place.of(r).interval(num) for r in range(len(place.node_of_rank))}
    start, stop = intervals[place.rank]
    borders = sorted({b for ends in intervals.values() for b in ends if start <= b <= stop} | {start, stop})
    out = []
    for low, high in itertools.pairwise(borders):
        holders = tuple(next(r for r in group if intervals[r][0] <= low < intervals[r][1]) for group in place.groups)
        for i, adder in enumerate(holders):
            a, b = (low + (high - low) * n // len(holders) for n in (i, i + 1))
            if a < b:
                out.append(Share(a, b, holders, adder))
    return tuple(out)


def _sum(comm: Comm, unit: Unit, mine: Sequence[Share], key: int) -> None:
    view = {s: unit.own_grad[s.start - unit.start : s.stop - unit.start] for s in mine}
    peers = sorted({r for s in mine for r in s.holders} - {comm.rank})
    added = [s for s in mine if s.adder == comm.rank]
    lent = {p: [s for s in mine if s.adder == p] for p in peers}
    kept = {p: [s for s in added if p in s.holders] for p in peers}

    terms = {p: _room(unit, kept[p]) for p in peers}
    comm.transfer({p: _joined(unit, lent[p], view) for p in peers}, terms, key).wait()
    for share, at in zip(added, _offsets(added, kept), strict=True):
        own, total = view[share].clone(), view[share].zero_()
        for holder in share.holders:
            start = at.get(holder, 0)
            total += own if holder == comm.rank else terms[holder][start : start + len(own)]

    sums = {p: _room(unit, lent[p]) for p in peers}
    comm.transfer({p: _joined(unit, kept[p], view) for p in peers}, sums, key + 1).wait()
    for peer, lent_to in lent.items():
        parts = torch.split(sums[peer], [s.stop - s.start for s in lent_to])
        for share, part in zip(lent_to, parts, strict=True):
            view[share].copy_(part)


def _offsets(added: Sequence[Share], kept: dict[int, list[Share]]) -> list[dict[int, int]]:
    """Where each added share begins in the message of each of its other holders."""
    out = []
    for share in added:
        out.append(
            {p: sum(s.stop - s.start for s in kept[p][: kept[p].index(share)]) for p in kept if share in kept[p]}
        )
    return out


def _room(unit: Unit, parts: Sequence[Share]) -> Tensor:
    return unit.own_grad.new_empty(sum(s.stop - s.start for s in parts))


def _joined(unit: Unit, parts: Sequence[Share], view: dict[Share, Tensor]) -> Tensor:
    return torch.cat([view[s] for s in parts]) if parts else unit.own_grad.new_empty(0)


def _buckets(grads: Tensor) -> Sequence[Tensor]:
    return torch.split(grads, max(1, BUCKET_BYTES // grads.element_size()))
