"""Gradient reduction: parameters' gradients summed over all ranks in fixed buckets, through a cancellable `Comm`.

Our own instead of DDP: DDP's all-reduce can't be cancelled when a peer dies, and it averages. Every rank reduces every
parameter in the same order, with zeros where it held no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zellige_ray.attention.comm import Comm

BUCKET_BYTES = 16 << 20


class GradientReducer:
    """Flat buckets of gradients: each parameter's `grad` is a view into one."""

    def __init__(self, parameters: Sequence[nn.Parameter], bucket_bytes: int = BUCKET_BYTES) -> None:
        """parameters: those to train, in an order that is the same on every rank. bucket_bytes: size of one message."""
        self._buckets: list[tuple[Tensor, list[nn.Parameter]]] = []
        group: list[nn.Parameter] = []
        for parameter in parameters:
            if group and (
                parameter.dtype != group[0].dtype
                or sum(p.numel() for p in group) * parameter.element_size() >= bucket_bytes
            ):
                self._close(group)
                group = []
            group.append(parameter)
        if group:
            self._close(group)

    def _close(self, group: list[nn.Parameter]) -> None:
        flat = torch.zeros(sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device)
        at = 0
        for p in group:
            p.grad = flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        self._buckets.append((flat, list(group)))

    def zero(self) -> None:
        """Sets every gradient to zero, in place."""
        for flat, _ in self._buckets:
            flat.zero_()

    def reduce(self, comm: Comm | None) -> None:
        """Sums all gradients over the ranks of `comm`. Raises CommError or Regroup, and leaves them undefined."""
        if comm is None or comm.size == 1:
            return
        for pending in [comm.all_reduce(flat) for flat, _ in self._buckets]:
            pending.wait()

    def norm(self) -> float:
        """The true global norm of the reduced gradients, accumulated in float64."""
        squares = [torch.linalg.vector_norm(flat, dtype=torch.float64).square() for flat, _ in self._buckets]
        return float(torch.stack(squares).sum().sqrt())

    def scale(self, factor: float) -> None:
        """Multiplies every gradient by `factor`, in place."""
        for flat, _ in self._buckets:
            flat.mul_(factor)
