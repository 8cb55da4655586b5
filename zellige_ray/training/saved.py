"""Saved weights: tensors of a complete checkpoint by name, whatever number of ranks and layout wrote them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from zellige_ray.errors import CheckpointError
from zellige_ray.training.checkpoint_io import BASE, cause, quiet

Part = Literal["model", "ema"]


class SavedWeights:
    """Names and shapes are read at once, tensors when they are asked for."""

    def __init__(self, checkpoint: Path) -> None:
        """Raises CheckpointError when it can't be read."""
        self._folder = checkpoint
        try:
            found: Any = dcp.FileSystemReader(str(checkpoint)).read_metadata().state_dict_metadata
        except (OSError, EOFError, ValueError, AttributeError, KeyError, ImportError, IndexError) as fault:
            raise CheckpointError(f"cannot read checkpoint {checkpoint}: {type(fault).__name__}: {fault}") from fault
        self._known: dict[str, TensorStorageMetadata] = {
            name: one for name, one in found.items() if isinstance(one, TensorStorageMetadata)
        }
        self._others = found.keys() - self._known.keys()

    def names(self, part: Part) -> list[str]:
        """Names of the tensors of a part; empty where the run kept no such part."""
        return [name.removeprefix(f"{part}.") for name in self._known if name.startswith(f"{part}.")]

    def base(self) -> str | None:
        """The fingerprint of the weights beside which saved adapters were trained; None without adapters."""
        into: dict[str, Any] = {BASE: ""}
        if BASE not in self._others:
            return None
        self._load(into)
        return str(into[BASE])

    def dtype(self, part: Part) -> torch.dtype:
        """Of the tensors of a part that is there."""
        return next(one.properties.dtype for name, one in self._known.items() if name.startswith(f"{part}."))

    def shape(self, part: Part, name: str) -> tuple[int, ...]:
        """Of one tensor, whole."""
        return tuple(self._known[f"{part}.{name}"].size)

    def read(self, part: Part, names: Iterable[str]) -> dict[str, Tensor]:
        """These tensors, whole, on the CPU, in their saved type. Raises CheckpointError when they can't be read."""
        into: dict[str, Any] = {}
        for name in names:
            known = self._known[f"{part}.{name}"]
            into[name] = torch.empty(tuple(known.size), dtype=known.properties.dtype)
        if into:
            self._load({part: into})
        return into

    def _load(self, into: dict[str, Any]) -> None:
        try:
            quiet()
            dcp.load(into, storage_reader=dcp.FileSystemReader(str(self._folder)), no_dist=True)
        except (CheckpointException, OSError, RuntimeError, ValueError, KeyError) as fault:
            raise CheckpointError(f"cannot read checkpoint {self._folder}: {cause(fault)}") from fault
