"""Taking over state: one rank's state dicts, broadcast to all ranks, tensor by tensor.

What is no tensor travels pickled, with a place for each tensor, so that a newcomer needs to know nothing beforehand.
Ranks trust each other: they run the same script.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zellige_ray.attention.comm import Comm


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor goes."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def broadcast_state(state: Any, source: int, comm: Comm) -> Any:
    """The source's state, on every rank: nested dicts, lists and tuples of tensors and picklable values.

    state: read on the source only. Tensors arrive on the communicator's device. Raises CommError or Regroup.
    """
    tensors: list[Tensor] = []
    text = b""
    if comm.rank == source:
        text = pickle.dumps(_take(state, tensors))
    size = torch.tensor([len(text)], dtype=torch.int64, device=comm.device)
    comm.broadcast(size, source).wait()
    letters = torch.empty(int(size), dtype=torch.uint8, device=comm.device)
    if comm.rank == source:
        letters.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    comm.broadcast(letters, source).wait()
    plan = pickle.loads(letters.cpu().numpy().tobytes())
    arrived: list[Tensor] = []
    for place in _places(plan):
        if comm.rank == source:
            sent = tensors[place.number].detach().to(comm.device).contiguous()
        else:
            sent = torch.empty(place.shape, dtype=place.dtype, device=comm.device)
        if sent.numel():
            comm.broadcast(sent, source).wait()
        arrived.append(sent)
    return _give(plan, arrived)


def _take(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1, tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {k: _take(v, tensors) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_take(v, tensors) for v in value)
    return value


def _places(value: Any) -> list[_Place]:
    """In the order of their numbers."""
    if isinstance(value, _Place):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [place for v in values for place in _places(v)]


def _give(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.number]
    if isinstance(value, dict):
        return {k: _give(v, tensors) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_give(v, tensors) for v in value)
    return value
