"""Checkpoint tensors by torch.distributed.checkpoint: written in the background by one rank, read by any number."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from zellige_ray.errors import CheckpointError
from zellige_ray.training.state import TrainState


class BackgroundSave:
    """Writes a copy of the state, taken at once, while training goes on. done: all is on the disk; error: why not."""

    def __init__(self, folder: str, state: TrainState) -> None:
        self.step, self.done, self.error = state.step, False, ""
        copy = _copy(state.state_dict())
        self.num_bytes = _num_bytes(copy)
        self._thread = threading.Thread(target=self._write, args=(folder, copy), name="zellige-checkpoint", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Returns when it is done or failed, or after the time-out."""
        self._thread.join(timeout_s)

    def _write(self, folder: str, copy: dict[str, Any]) -> None:
        try:
            _save(folder, copy)
            self.done = True
        except CheckpointError as fault:
            self.error = str(fault)


def save(folder: str, state: TrainState) -> None:
    """Writes the whole state into an existing, empty folder. Raises CheckpointError with the cause, say a full disk."""
    _save(folder, state.state_dict())


def _save(folder: str, values: dict[str, Any]) -> None:
    try:
        quiet()
        dcp.save(values, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    except (CheckpointException, OSError, RuntimeError, ValueError) as fault:
        raise CheckpointError(f"cannot write checkpoint {folder}: {cause(fault)}") from fault


def load(folder: str, state: TrainState) -> None:
    """Reads a checkpoint of the same architecture into `state`. Raises CheckpointError otherwise."""
    state.tensors()  # gives AdamW its moments, so that there is something to read into
    into: dict[str, Any] = state.state_dict()
    try:
        quiet()
        dcp.load(into, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
        state.load_state_dict(into)
    except (CheckpointException, OSError, RuntimeError, ValueError, KeyError) as fault:
        raise CheckpointError(f"cannot read checkpoint {folder}: {cause(fault)}") from fault


def _copy(value: Any) -> Any:
    """Tensors copied to the CPU, in their dicts."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def _num_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_num_bytes, value.values()))
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def cause(fault: BaseException) -> str:
    """The library's exception (no `Exception`, it derives from BaseException) holds the cause of each rank."""
    if isinstance(fault, CheckpointException) and fault.failures:
        first = next(iter(fault.failures.values()))[0]
        return f"{type(first).__name__}: {first}"
    return f"{type(fault).__name__}: {fault}"


def quiet() -> None:
    """Silences the library's remark that no process group is there: that is what `no_dist` asked for.

    The filter stays: `warnings.catch_warnings` is not safe in a thread beside others.
    """
    warnings.filterwarnings("ignore", message=".*torch.distributed.*")
    warnings.filterwarnings("ignore", message=".*TypedStorage.*")
