"""Checkpoint tensors by torch.distributed.checkpoint: written by one rank of a replicated state, read by any number."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from zellige_ray.errors import CheckpointError
from zellige_ray.training.state import TrainState


def save(folder: str, state: TrainState) -> None:
    """Writes the whole state into an existing, empty folder. Raises CheckpointError with the cause, say a full disk."""
    try:
        with _single_process():
            dcp.save(state.state_dict(), storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    except (CheckpointException, OSError, RuntimeError, ValueError) as fault:
        raise CheckpointError(f"cannot write checkpoint {folder}: {_cause(fault)}") from fault


def load(folder: str, state: TrainState) -> None:
    """Reads a checkpoint of the same architecture into `state`. Raises CheckpointError otherwise."""
    state.tensors()  # gives AdamW its moments, so that there is something to read into
    into: dict[str, Any] = state.state_dict()
    try:
        with _single_process():
            dcp.load(into, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
        state.load_state_dict(into)
    except (CheckpointException, OSError, RuntimeError, ValueError, KeyError) as fault:
        raise CheckpointError(f"cannot read checkpoint {folder}: {_cause(fault)}") from fault


def _cause(fault: BaseException) -> str:
    """The library's exception (no `Exception`, it derives from BaseException) holds the cause of each rank."""
    if isinstance(fault, CheckpointException) and fault.failures:
        first = next(iter(fault.failures.values()))[0]
        return f"{type(first).__name__}: {first}"
    return f"{type(fault).__name__}: {fault}"


@contextmanager
def _single_process() -> Iterator[None]:
    """Silences the library's remark that no process group is there: that is what `no_dist` asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.distributed.*")
        warnings.filterwarnings("ignore", message=".*TypedStorage.*")
        yield
