"""Units: the parameters of one block as one flat vector, whole while the block runs, an interval of it otherwise.

A module's parameters stay what they are: views into the unit's buffer, whose storage is given back between uses and
filled again in place, so that what autograd saved is valid when backward comes. The interval is the truth: a step that
breaks leaves it as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.pending import Pending
from zellige_ray.training.layouts.place import Place


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter's interval [start, stop) of its unit's vector."""

    name: str
    parameter: nn.Parameter
    start: int
    stop: int


class Unit:
    """Parameters of one type, all trained or all frozen.

    own: this rank's interval of their values. own_grad: of their gradients, summed over its group; empty when frozen.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        """named: in an order that is the same on every rank."""
        first = named[0][1]
        self.entries: list[Entry] = []
        at = 0
        for name, p in named:
            self.entries.append(Entry(name, p, at, at + p.numel()))
            at += p.numel()
        self.num, self.trained, self.dtype, self.device = at, first.requires_grad, first.dtype, first.device
        self.own = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.own_grad = self._zeros(0)
        self._whole = self.own
        self._grads: Tensor | None = None
        self.take(Place("replicated"), self.own)

    def take(self, place: Place, own: Tensor) -> None:
        """Holds `own`, the interval of a place, from now on; nothing is gathered."""
        self.place = place
        self.sharded = len(place.members) > 1
        start, stop = place.interval(self.num)
        self.start, self.stop, self.own = start, stop, own
        self.own_grad = self._zeros(stop - start if self.trained else 0)
        self._grads = None
        self._whole = self._zeros(place.part(self.num) * len(place.members)) if self.sharded else own
        for e in self.entries:
            e.parameter.data = self._whole[e.start : e.stop].view(e.parameter.shape)
            e.parameter.grad = None
            if self.trained and not self.sharded:
                e.parameter.grad = self.own_grad[e.start : e.stop].view(e.parameter.shape)
        self.free()

    def gather(self, comm: Comm | None) -> None:
        """Fills the parameters. Raises CommError or Regroup, and leaves them undefined."""
        if not self.sharded or self.gathered:
            return
        assert comm is not None
        self._whole.untyped_storage().resize_(self._whole.numel() * self._whole.element_size())
        mine = self.place.members.index(self.place.rank) * self.place.part(self.num)
        self._whole[mine : mine + len(self.own)] = self.own
        comm.all_gather(self._whole, self.place.members).wait()

    @property
    def gathered(self) -> bool:
        """Whether the parameters hold their values."""
        return not self.sharded or self._whole.untyped_storage().nbytes() > 0

    def free(self) -> None:
        """Gives the memory of the parameters back; they keep shapes and names."""
        if self.sharded:
            self._whole.untyped_storage().resize_(0)

    def open(self) -> None:
        """Makes room for the gradients of the whole parameters, which backward adds up in place."""
        if not (self.sharded and self.trained):
            return
        self._grads = self._zeros(len(self._whole))
        for e in self.entries:
            e.parameter.grad = self._grads[e.start : e.stop].view(e.parameter.shape)

    def close(self, comm: Comm | None) -> Pending[Tensor] | None:
        """Starts summing the gradients into their owners; `add` what comes of it. None when there is nothing to sum."""
        grads = self.drop()
        if grads is None:
            return None
        assert comm is not None
        return comm.reduce_scatter(grads, self.place.members)

    def drop(self) -> Tensor | None:
        """Takes the gradients of the whole parameters away."""
        grads, self._grads = self._grads, None
        if self.sharded:
            for e in self.entries:
                e.parameter.grad = None
        return grads

    def add(self, part: Tensor) -> None:
        """Adds this rank's part of a sum to its gradients."""
        self.own_grad += part[: len(self.own_grad)]

    def pieces(self) -> list[tuple[str, nn.Parameter]]:
        """What this rank's optimizer works on: the parameters themselves, or its interval of each, flat.

        Their `grad` is the matching interval of `own_grad`.
        """
        if not self.sharded:
            return [(e.name, e.parameter) for e in self.entries]
        out = []
        for e, start, stop in self.spans():
            piece = nn.Parameter(self.own[start - self.start : stop - self.start], requires_grad=self.trained)
            if self.trained:
                piece.grad = self.own_grad[start - self.start : stop - self.start]
            out.append((e.name, piece))
        return out

    def spans(self) -> list[tuple[Entry, int, int]]:
        """(parameter, start, stop) of this rank's interval, in coordinates of the vector, without empty ones."""
        ends = ((e, max(e.start, self.start), min(e.stop, self.stop)) for e in self.entries)
        return [(e, start, stop) for e, start, stop in ends if start < stop]

    def cut(self, tensors: Sequence[Tensor]) -> Tensor:
        """This rank's interval of a whole vector, given as one tensor per parameter: a copy on the unit's device.

        The tensors are of one type, which stays.
        """
        parts = []
        for e, tensor in zip(self.entries, tensors, strict=True):
            start, stop = max(e.start, self.start), min(e.stop, self.stop)
            if start < stop:
                part = tensor.detach().reshape(-1)[start - e.start : stop - e.start]
                parts.append(part.to(self.device))
        return torch.cat(parts) if parts else tensors[0].new_empty(0, device=self.device)

    def whole_of(self, interval: Tensor, comm: Comm) -> Tensor:
        """A whole vector from this rank's interval of it; its group calls it together."""
        part = self.place.part(self.num)
        whole = interval.new_zeros(part * len(self.place.members))
        mine = self.place.members.index(self.place.rank) * part
        whole[mine : mine + len(interval)] = interval
        return comm.all_gather(whole, self.place.members).wait()

    def by_name(self, whole: Tensor) -> list[tuple[str, Tensor]]:
        """A whole vector as tensors of the parameters' shapes."""
        return [(e.name, whole[e.start : e.stop].view(e.parameter.shape)) for e in self.entries]

    def _zeros(self, num: int) -> Tensor:
        return torch.zeros(num, dtype=self.dtype, device=self.device)


def make_units(module: nn.Module, blocks: Sequence[nn.Module]) -> tuple[list[list[Unit]], list[Unit]]:
    """(the units of each block, those of the rest of the module).

    A parameter that is used outside of its block too belongs to the rest.
    """
    names = {id(p): name for name, p in module.named_parameters()}
    uses = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    of_blocks, taken = [], set[int]()
    for block in blocks:
        mine = dict.fromkeys(block.parameters())
        inside = Counter(id(p) for _, p in block.named_parameters(remove_duplicate=False))
        mine = {p: None for p in mine if inside[id(p)] == uses[id(p)]}
        taken |= {id(p) for p in mine}
        of_blocks.append(_units([(names[id(p)], p) for p in mine]))
    return of_blocks, _units([(n, p) for n, p in module.named_parameters() if id(p) not in taken])


def _units(named: Sequence[tuple[str, nn.Parameter]]) -> list[Unit]:
    kinds = dict.fromkeys((p.dtype, p.requires_grad) for _, p in named)
    return [Unit([(n, p) for n, p in named if (p.dtype, p.requires_grad) == kind]) for kind in kinds]
