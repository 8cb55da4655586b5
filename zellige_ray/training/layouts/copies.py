"""Copies: this rank's part of the state as of a few steps, and another rank's, in host memory.

All ranks take a cut behind the same step; each sends its part to a keeper on another node, where there is one, while
the next step is computed. A rank votes for that step when what it keeps has arrived; once the step counts, the cut is
complete on all ranks, and older ones are let go. So at any moment one cut is whole, and the loss of any one rank, or of
all ranks whose keepers live, leaves a step that all go back to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.pending import Pending
from zellige_ray.errors import CommError
from zellige_ray.training.layouts.content import Content
from zellige_ray.training.layouts.moving import Held, Holding
from zellige_ray.training.layouts.place import Place
from zellige_ray.training.layouts.units import Unit

FIRST_KEY = 3 << 28  # of messages, apart from those of moves and of collectives


def stride(node_of_rank: Sequence[int]) -> int:
    """How far behind a rank its keeper is, around the ring of ranks: on another node for as many as possible."""
    size = len(node_of_rank)

    def alike(by: int) -> int:
        return sum(node_of_rank[r] == node_of_rank[(r + by) % size] for r in range(size))

    return min(range(1, size), key=alike, default=0)


def needed(place: Place) -> bool:
    """Whether a layout leaves parts that one rank alone holds."""
    return len(place.groups) == 1 and len(place.members) > 1


@dataclass(slots=True)
class _Cut:
    """own: complete at once. come: what this rank keeps, once all of `flights` have landed; None when it never will."""

    epoch: int
    own: Held
    come: tuple[Holding, list[Content]] | None
    flights: list[Pending[Tensor]] = field(default_factory=list)

    @property
    def step(self) -> int:
        return self.own[0].step


class Copies:
    """The cuts that a rank holds. Empty where the layout, or `redundancy: 1`, asks for none."""

    def __init__(self) -> None:
        self._cuts: list[_Cut] = []

    def due(self, epoch: int, step: int, every: int) -> bool:
        """Whether a cut is to be taken behind a step: each `every` steps, and at once in a new epoch."""
        last = self._cuts[-1] if self._cuts else None
        return last is None or last.epoch != epoch or (step % every == 0 and last.step < step)

    def begin(self, comm: Comm, step: int, place: Place, units: Sequence[Unit], contents: Sequence[Content]) -> None:
        """Takes a cut of what this rank holds, and starts sending it to its keeper. All ranks call it alike."""
        own = [_on_host(c) for c in contents]
        by = stride(place.node_of_rank)
        keeper, ward = (comm.rank + by) % comm.size, place.of((comm.rank - by) % comm.size)
        kept: list[Content] = []
        flights, key = [], FIRST_KEY
        for unit, content in zip(units, own, strict=True):
            start, stop = ward.interval(unit.num)
            come = {k: torch.empty(stop - start, dtype=v.dtype, device=comm.device) for k, v in content.vectors.items()}
            kept.append(Content(come, dict(content.counters)))
            for kind, vector in content.vectors.items():
                flights.append(comm.transfer({}, {ward.rank: come[kind]}, key, aside=True))
                comm.transfer({keeper: vector.to(comm.device)}, {}, key, aside=True)
                key += 1
        cut = _Cut(comm.epoch, (Holding.of(step, place, own), own), (Holding.of(step, ward, own), kept), flights)
        self._cuts = [*self._cuts[:1], *self._cuts[1:][-1:], cut]

    def land(self) -> None:
        """Waits for what this rank keeps of the last cut. Raises CommError or Regroup."""
        for cut in self._cuts:
            for flight in cut.flights:
                flight.wait()
            if cut.flights and cut.come is not None:
                cut.come = cut.come[0], [_on_host(c) for c in cut.come[1]]
            cut.flights.clear()

    def decided(self, epoch: int, step: int) -> None:
        """A step counts, for which all ranks of an epoch voted: the cut before it is complete on all of them."""
        if self._cuts and not self._cuts[-1].flights and self._cuts[-1].epoch == epoch and self._cuts[-1].step < step:
            del self._cuts[:-1]

    def leave(self) -> None:
        """The epoch is over: what has not arrived never comes."""
        for cut in self._cuts:
            if not all(flight.done for flight in cut.flights):
                cut.come = None
                cut.flights.clear()
        try:
            self.land()
        except CommError:
            self._cuts[-1].come = None
            self._cuts[-1].flights.clear()

    def held(self) -> list[Held]:
        """Own parts, and kept ones that have arrived."""
        kept = [cut.come for cut in self._cuts if cut.come is not None and not cut.flights]
        return [*(cut.own for cut in self._cuts), *kept]

    @property
    def num_bytes(self) -> int:
        """Of host memory."""
        held = [contents for _, contents in self.held()]
        return sum(v.numel() * v.element_size() for contents in held for c in contents for v in c.vectors.values())


def _on_host(content: Content) -> Content:
    return Content({k: v.detach().to("cpu", copy=True) for k, v in content.vectors.items()}, dict(content.counters))
