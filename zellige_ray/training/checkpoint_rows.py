"""Rows: what a rank holds of each tensor of a checkpoint, as boxes that torch.distributed.checkpoint reads and writes.

On the disk a tensor has its own name and shape, whoever wrote it: an interval of its elements, in row-major order, is a
few boxes, each of which is contiguous. So any number of ranks in any layout read what any others wrote, and so does any
other tool.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from zellige_ray.training.blockwise import Whole
from zellige_ray.training.layouts.content import EMA, WEIGHT, Content
from zellige_ray.training.layouts.units import Unit
from zellige_ray.training.state import TrainState

Box = tuple[tuple[int, ...], tuple[int, ...], int]  # offsets, sizes, where it begins in the interval


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Elements [start, start + len(values)) of the tensor `path` of shape `shape`, flat."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    start: int
    values: Tensor

    @property
    def key(self) -> str:
        """The tensor's name in a checkpoint."""
        return ".".join(self.path)

    def parts(self) -> Iterator[tuple[ChunkStorageMetadata, Tensor]]:
        """Its boxes, with what is in them: views."""
        for offsets, sizes, at in boxes(self.start, self.start + self.values.numel(), self.shape):
            chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            yield chunk, self.values[at : at + math.prod(sizes)].view(sizes)


def boxes(start: int, stop: int, shape: Sequence[int]) -> list[Box]:
    """Elements [start, stop) of a row-major tensor as boxes, ascending; at most two per dimension and one more."""
    if start >= stop:
        return []
    if not shape:
        return [((), (), 0)]
    inner = math.prod(shape[1:])
    first, last = -(-start // inner), stop // inner  # whole slices
    rest = (0,) * (len(shape) - 1)
    if first > last:
        return _inside(start // inner, start, stop, shape)
    out = _inside(first - 1, start, first * inner, shape) if start < first * inner else []
    if first < last:
        out.append(((first, *rest), (last - first, *shape[1:]), first * inner - start))
    if last * inner < stop:
        tail = _inside(last, last * inner, stop, shape)
        out += [(offsets, sizes, at + last * inner - start) for offsets, sizes, at in tail]
    return out


def _inside(index: int, start: int, stop: int, shape: Sequence[int]) -> list[Box]:
    inner = math.prod(shape[1:])
    within = boxes(start - index * inner, stop - index * inner, shape[1:])
    return [((index, *offsets), (1, *sizes), at) for offsets, sizes, at in within]


def rows_of(state: TrainState, contents: Sequence[Content], first: bool) -> list[Row]:
    """Everything that a state's contents are, tensor by tensor. first: of those that write, which adds the buffers."""
    out = []
    for unit, content in zip(state.layout.units, contents, strict=True):
        for kind, vector in content.vectors.items():
            out += rows_of_vector(unit, kind, vector)
        for e in unit.entries:
            if unit.start <= e.start < unit.stop:
                counters = {k: torch.tensor([v]) for k, v in content.counters.items()}
                out += [Row(("optimizer", e.name, k), (), 0, value) for k, value in counters.items()]
    if first:
        known = {e.name for u in state.layout.units for e in u.entries}
        others = {n: t for n, t in state.module.state_dict().items() if n not in known}
        out += [Row(("model", n), tuple(t.shape), 0, t.reshape(-1)) for n, t in others.items()]
        out += rows_of_whole(state.whole())
        out.append(Row(("step",), (), 0, torch.tensor([state.step])))
    return out


def rows_of_whole(whole: Whole) -> list[Row]:
    """An optimizer's state that moves whole: views."""
    named = [(name, kind, t) for name, kinds in whole.items() for kind, t in kinds.items()]
    return [Row(("optimizer", name, kind), tuple(t.shape), 0, t.reshape(-1)) for name, kind, t in named]


def rows_of_vector(unit: Unit, kind: str, vector: Tensor) -> list[Row]:
    """The intervals of a unit's parameters in one of its vectors: views."""
    out = []
    for e, start, stop in unit.spans():
        path = {WEIGHT: ("model", e.name), EMA: ("ema", e.name)}.get(kind, ("optimizer", e.name, kind))
        values = vector[start - unit.start : stop - unit.start]
        out.append(Row(path, tuple(e.parameter.shape), start - e.start, values))
    return out


class Writing(SavePlanner):
    """Writes rows and words; the metadata tell of these only, see `checkpoint_io.assemble`."""

    def __init__(self, rows: Sequence[Row], words: Mapping[str, str]) -> None:
        self._rows, self._words = rows, words
        self._values: dict[MetadataIndex, Tensor] = {}

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        return None

    def create_local_plan(self) -> SavePlan:
        items = [WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO) for key in self._words]
        for row in self._rows:
            for chunk, values in row.parts():
                index = MetadataIndex(row.key, chunk.offsets)
                self._values[index] = values
                properties = TensorProperties.create_from_tensor(values)
                about = TensorWriteData(chunk, properties, torch.Size(row.shape))
                items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=about))
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        tensors: dict[str, TensorStorageMetadata] = {}
        for item in all_plans[0].items:
            about = item.tensor_data
            if about is None:
                continue
            found = tensors.setdefault(item.index.fqn, TensorStorageMetadata(about.properties, about.size, []))
            found.chunks.append(about.chunk)
        paths = {row.key: row.path for row in self._rows} | {key: (key,) for key in self._words}
        words = {key: BytesStorageMetadata() for key in self._words}
        return all_plans, Metadata({**tensors, **words}, planner_data=paths)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        if write_item.type != WriteItemType.BYTE_IO:
            return self._values[write_item.index]
        out = io.BytesIO()
        torch.save(self._words[write_item.index.fqn], out)
        return out


class Reading(LoadPlanner):
    """Reads into rows, whose tensors the checkpoint must have in these shapes."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._values: dict[MetadataIndex, Tensor] = {}
        self._metadata: Metadata | None = None

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        self._metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        assert self._metadata is not None
        items: list[ReadItem] = []
        for row in self._rows:
            saved = self._metadata.state_dict_metadata[row.key]
            assert isinstance(saved, TensorStorageMetadata)
            parts = list(row.parts())
            self._values |= {MetadataIndex(row.key, chunk.offsets): values for chunk, values in parts}
            items += create_read_items_for_chunk_list(row.key, saved, [chunk for chunk, _ in parts])
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise ValueError(f"{read_item.dest_index.fqn} is not a tensor")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        out = self._values[MetadataIndex(read_item.dest_index.fqn, read_item.dest_index.offset)]
        for dim, (offset, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            out = out.narrow(dim, offset, length)
        return out

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        return None


def check(tensors: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError, naming them, unless the checkpoint has every expected tensor in its shape."""
    missing = sorted(n for n in expected if n not in tensors)
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise ValueError(f"missing: {', '.join(missing[:8])}{more}")
    for name, shape in expected.items():
        size = tuple(tensors[name].size)
        if size != shape:
            raise ValueError(f"Size mismatch for {name}: the checkpoint has {size}, the model {shape}")
