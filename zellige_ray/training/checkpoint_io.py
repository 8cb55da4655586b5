"""Checkpoint tensors by torch.distributed.checkpoint: written in the background by one rank, read by any number."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from zellige_ray.errors import CheckpointError
from zellige_ray.models import lora
from zellige_ray.training.state import TrainState

BASE = "base"  # fingerprint of the weights beside which adapters were trained


class BackgroundSave:
    """Writes a copy of the state, taken at once, while training goes on. done: all is on the disk; error: why not."""

    def __init__(self, folder: str, state: TrainState) -> None:
        self.step, self.done, self.error = state.step, False, ""
        copy = _copy(_to_save(state))
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
    """Writes what a run can't make again into an existing, empty folder: of a LoRA run its adapters, else everything.

    Raises CheckpointError with the cause, say a full disk.
    """
    _save(folder, _to_save(state))


def _save(folder: str, values: dict[str, Any]) -> None:
    try:
        quiet()
        dcp.save(values, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    except (CheckpointException, OSError, RuntimeError, ValueError) as fault:
        raise CheckpointError(f"cannot write checkpoint {folder}: {cause(fault)}") from fault


def load(folder: str, state: TrainState) -> None:
    """Reads a checkpoint of the same architecture into `state`. Raises CheckpointError otherwise."""
    state.tensors()  # gives AdamW its moments, so that there is something to read into
    into = _to_save(state)
    try:
        quiet()
        dcp.load(into, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
        check_base(into.get(BASE), state.module, folder)
        state.load_state_dict(into | {"model": state.module.state_dict() | into["model"]})
    except (CheckpointException, OSError, RuntimeError, ValueError, KeyError) as fault:
        raise CheckpointError(f"cannot read checkpoint {folder}: {cause(fault)}") from fault


def check_base(saved: str | None, module: nn.Module, folder: str) -> None:
    """Raises CheckpointError when adapters were trained beside other weights than those of the module."""
    here = lora.base_of(module)
    if saved != here:
        raise CheckpointError(
            f"the adapters in {folder} were trained beside other weights (fingerprint {saved}) than these ({here}): "
            "give model.init_from, or the seed, that the run began with"
        )


def _to_save(state: TrainState) -> dict[str, Any]:
    values, base = state.state_dict(), lora.base_of(state.module)
    if base is None:
        return values
    return values | {"model": {n: t for n, t in values["model"].items() if lora.is_adapter(n)}, BASE: base}


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
