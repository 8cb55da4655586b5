"""The layout of a state at work: blocks gathered before they run, their gradients summed behind them, in lock step.

Why all ranks post the same collectives in the same order: a block is gathered when it is entered, forward and backward,
and what the block before it left open is summed just before. Autograd runs the nodes of a later block before it asks
for an earlier one, gradients of parameters included, so that order is the order of the blocks, whatever a rank holds,
checkpointed or not, trained or frozen.

The optimizer needs nobody: it works on this rank's intervals, and the next forward pass gathers what it made of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.pending import Pending
from zellige_ray.training.layouts.place import Place
from zellige_ray.training.layouts.replicas import sum_replicas
from zellige_ray.training.layouts.units import Unit, make_units


class Layout:
    """Parameters and gradients of a module. A new one is alone: it holds everything, in any layout.

    units: all of them, in an order that is the same on every rank.
    """

    def __init__(self, module: nn.Module, blocks: Sequence[nn.Module], name: str) -> None:
        """blocks: what runs one after another, each gathered by itself; the rest of the module stays while it runs."""
        self._of_blocks, self._rest = make_units(module, blocks)
        self.units: list[Unit] = [u for units in self._of_blocks for u in units] + self._rest
        self.place = Place(name)
        self._comm: Comm | None = None
        self._running = False
        self._open: list[Unit] = []
        self._flight: list[tuple[Unit, Pending[Tensor]]] = []
        self._norm: float | None = None
        for block, units in zip(blocks, self._of_blocks, strict=True):
            block.register_forward_pre_hook(_before(self, units))
            block.register_forward_hook(_behind(self, units))

    @property
    def gathered_bytes(self) -> int:
        """The most that is whole at once on a rank with a part: the rest of the model and a block, with gradients."""
        blocks = [sum(map(_whole_bytes, units)) for units in self._of_blocks]
        return sum(map(_whole_bytes, self._rest)) + max(blocks, default=0)

    def take(self, place: Place, own: Sequence[Tensor]) -> None:
        """Holds these intervals, one per unit, from now on."""
        self.place = place
        for unit, values in zip(self.units, own, strict=True):
            unit.take(place, values)

    def pieces(self) -> list[tuple[str, nn.Parameter]]:
        """What the optimizer works on, by parameter name; see `Unit.pieces`."""
        return [piece for u in self.units if u.trained for piece in u.pieces()]

    @contextmanager
    def running(self, comm: Comm | None) -> Iterator[None]:
        """The model may run inside, forward and backward, on all ranks alike; gradients are summed over a group.

        comm: of the epoch; None when alone. Left by an exception, it keeps no parameter and no gradient that is not its
        own. Raises CommError or Regroup.
        """
        self._comm, self._running = comm, True
        try:
            for unit in self._rest:
                unit.gather(comm)
                if torch.is_grad_enabled():
                    unit.open()
            yield
            self._close(self._open)
            self._close(self._rest)
            self._land()
        finally:
            self._comm, self._running = None, False
            self._open, self._flight = [], []
            for unit in self.units:
                unit.drop()
                unit.free()

    def zero(self) -> None:
        """Sets every gradient to zero, in place."""
        self._norm = None
        for unit in self.units:
            unit.own_grad.zero_()

    def reduce(self, comm: Comm | None) -> None:
        """Makes the gradients sums over all ranks, and finds their norm. Raises CommError or Regroup.

        Behind it, nothing about the step needs another rank.
        """
        squares = self._squares()
        if comm is not None and comm.size > 1:
            sum_replicas(comm, self.place, [u for u in self.units if u.trained])
            squares = self._squares()
            if len(self.place.groups) < len(self.place.node_of_rank):  # other groups hold the same as the first
                squares *= float(self.place.rank in self.place.groups[0])
                comm.all_reduce(squares).wait()
        self._norm = math.sqrt(float(squares))

    def norm(self) -> float:
        """The true global norm of the reduced gradients, accumulated in float64; equal on all ranks."""
        if self._norm is None:
            if len(self.place.members) > 1:
                raise ValueError("the norm of sharded gradients is known once they are reduced")
            return math.sqrt(float(self._squares()))
        return self._norm

    def scale(self, factor: float) -> None:
        """Multiplies every gradient by `factor`, in place."""
        for unit in self.units:
            unit.own_grad.mul_(factor)

    def _squares(self) -> Tensor:
        grads = [u.own_grad for u in self.units if u.trained]
        squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in grads]
        return torch.stack(squares).sum().reshape(1)

    # Around a block

    def enter(self, units: Sequence[Unit]) -> None:
        """A block is about to run."""
        if not self._running and units[0].sharded:
            raise ValueError("a sharded model runs inside `Layout.running` only: its parameters must be gathered")
        for unit in units:
            unit.gather(self._comm)

    def leave(self, units: Sequence[Unit], output: Any) -> None:
        """A block has run forward; where gradients come back to it, it is entered again before they do."""
        if not units[0].sharded:
            return
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _grad: self._enter_backward(units))  # type: ignore[no-untyped-call]
        for unit in units:
            unit.free()

    def _enter_backward(self, units: Sequence[Unit]) -> None:
        if units[0] in self._open:
            return  # another output of the same block came first
        self._close(self._open)
        self._open = list(units)
        self.enter(units)
        for unit in units:
            unit.open()

    def _close(self, units: Sequence[Unit]) -> None:
        """Starts the sums of a block whose backward is over, once those of the block before it are there."""
        started = [(unit, unit.close(self._comm)) for unit in units]
        for unit in units:
            unit.free()
        self._land()
        self._flight = [(unit, pending) for unit, pending in started if pending is not None]
        self._open = []

    def _land(self) -> None:
        for unit, pending in self._flight:
            unit.add(pending.wait())
        self._flight = []


def _whole_bytes(unit: Unit) -> int:
    return unit.num * unit.dtype.itemsize * (2 if unit.trained else 1)


def _before(layout: Layout, units: Sequence[Unit]) -> Any:
    return lambda _module, _args: layout.enter(units) if units else None


def _behind(layout: Layout, units: Sequence[Unit]) -> Any:
    return lambda _module, _args, output: layout.leave(units, output) if units else None
