"""Checkpoint tensors by torch.distributed.checkpoint: written in the background by all ranks that share one copy of the
state, each its own part, read by any number of ranks in any layout.

torch's own coordination needs its default process group. Here each writer fills a folder of its own, and `assemble`
makes one checkpoint of them, by joining what they say about their files.
"""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.storage import WriteResult

from zellige_ray.errors import CheckpointError
from zellige_ray.models import lora
from zellige_ray.training.blockwise import MARK, Whole, empty_like
from zellige_ray.training.checkpoint_rows import Reading, Row, Writing, check, rows_of, rows_of_vector, rows_of_whole
from zellige_ray.training.layouts.content import EMA, WEIGHT, Content
from zellige_ray.training.layouts.units import Unit
from zellige_ray.training.state import TrainState

BASE = "base"  # fingerprint of the weights beside which adapters were trained
FAULTS = (CheckpointException, OSError, RuntimeError, ValueError, KeyError)


class BackgroundSave:
    """Writes a copy of this rank's part, taken at once, while training goes on; a rank that is no writer is done.

    done: it is on the disk. error: why not.
    """

    def __init__(self, folder: str, state: TrainState) -> None:
        self.step, self.num_bytes, self.done, self.error = state.step, 0, False, ""
        rows, words = _copy(_rows(state)), _words(state)
        self._thread: threading.Thread | None = None
        if not rows:
            self.done = True
            return
        self.num_bytes = sum(r.values.numel() * r.values.element_size() for r in rows)
        own = _folder_of(folder, state)
        self._thread = threading.Thread(
            target=self._write, args=(own, rows, words), name="zellige-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Returns when it is done or failed, or after the time-out."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _write(self, folder: str, rows: Sequence[Row], words: Mapping[str, str]) -> None:
        try:
            _save(folder, rows, words)
            self.done = True
        except CheckpointError as fault:
            self.error = str(fault)


def save(folder: str, state: TrainState) -> None:
    """Writes this rank's part of the state into an existing, empty folder: of a LoRA run its adapters, else everything.

    It is the whole checkpoint where this rank holds everything; see `assemble` otherwise. Raises CheckpointError with
    the cause, say a full disk.
    """
    rows = _rows(state)
    if rows:
        _save(_folder_of(folder, state), rows, _words(state))


def assemble(folder: str, num: int) -> None:
    """Makes one checkpoint of the parts of `num` writers, all of which must be complete.

    Raises CheckpointError when it can't be written.
    """
    if num == 1:
        return  # it wrote the checkpoint itself
    tensors: dict[str, TensorStorageMetadata] = {}
    words: dict[str, BytesStorageMetadata] = {}
    where: list[WriteResult] = []
    paths: dict[str, tuple[str, ...]] = {}
    try:
        quiet()
        for name in map(part_name, range(num)):
            about = dcp.FileSystemReader(f"{folder}/{name}").read_metadata()
            for key, tensor in about.state_dict_metadata.items():
                if not isinstance(tensor, TensorStorageMetadata):
                    words[key] = tensor
                    continue
                found = tensors.setdefault(key, dataclasses.replace(tensor, chunks=[]))
                found.chunks.extend(tensor.chunks)
            for index, file in about.storage_data.items():
                moved = dataclasses.replace(file, relative_path=f"{name}/{file.relative_path}")
                where.append(WriteResult(index, 0, moved))
            paths |= about.planner_data
        writer = dcp.FileSystemWriter(folder)
        writer.set_up_storage_writer(True)
        writer.finish(Metadata({**tensors, **words}, planner_data=paths), [where])
    except FAULTS as fault:
        raise CheckpointError(f"cannot write checkpoint {folder}: {cause(fault)}") from fault


def part_name(number: int) -> str:
    """The folder of a writer, inside of the checkpoint's."""
    return f"part-{number:04d}"


def load(folder: str, state: TrainState) -> None:
    """Reads what this rank's place gives it of a checkpoint of the same architecture, however that was written.

    An average that the checkpoint lacks starts from the weights. Raises CheckpointError, and leaves the state as it
    was, when the checkpoint can't be read or is of another architecture.
    """
    try:
        quiet()
        tensors = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        _check_base(folder, tensors, state.module)
        model, kept = state.module.state_dict(), lora.base_of(state.module) is not None
        wanted = {n: t for n, t in model.items() if not kept or lora.is_adapter(n)}
        check(tensors, {f"model.{n}": tuple(t.shape) for n, t in wanted.items()} | {"step": ()})
        whole = empty_like(state.whole())
        cut = _by_interval(tensors, whole)
        units = state.layout.units
        contents = [_room(unit, cut, state.averaged) for unit in units]
        counters = [{k: torch.zeros(1) for k in _kinds(u, cut)[1]} for u in units]
        step, buffers = torch.zeros(1, dtype=torch.int64), {} if kept else _buffers(state)
        rows = [Row(("step",), (), 0, step), *rows_of_whole(whole)]
        rows += [Row(("model", n), tuple(t.shape), 0, t.reshape(-1)) for n, t in buffers.items()]
        for unit, content, counts in zip(units, contents, counters, strict=True):
            for kind, vector in content.vectors.items() if unit.trained or not kept else ():
                rows += rows_of_vector(unit, kind, vector)
            rows += [Row(("optimizer", unit.entries[0].name, k), (), 0, value) for k, value in counts.items()]
        dcp.load({}, storage_reader=dcp.FileSystemReader(folder), planner=Reading(rows), no_dist=True)
    except FAULTS as fault:
        raise CheckpointError(f"cannot read checkpoint {folder}: {cause(fault)}") from fault
    with torch.no_grad():
        for name, values in buffers.items():
            model[name].copy_(values)
    for unit, content, counts in zip(units, contents, counters, strict=True):
        content.counters.update({k: float(value) for k, value in counts.items()})
        if state.averaged and unit.trained:
            content.vectors.setdefault(EMA, content.vectors[WEIGHT].clone())
    state.hold(state.layout.place, int(step), contents, whole)


def _by_interval(tensors: Mapping[str, Any], whole: Whole) -> Mapping[str, Any]:
    """What is read interval by interval: all but an optimizer's state that is read whole.

    Raises ValueError where the checkpoint's optimizer is of the other kind.
    """
    saved = [n for n in tensors if n.startswith("optimizer.")]
    in_blocks = any(n.endswith(f".{MARK}") for n in saved)
    if saved and in_blocks != bool(whole):
        there, here = ("adamw8bit", "adamw") if in_blocks else ("adamw", "adamw8bit")
        raise ValueError(f"optimizer.name is {there} there, {here} here: their moments can't be read as each other's")
    return {n: t for n, t in tensors.items() if not (in_blocks and n.startswith("optimizer."))}


def _check_base(folder: str, saved: Mapping[str, Any], module: nn.Module) -> None:
    into: dict[str, Any] = {BASE: ""}
    if BASE in saved:
        dcp.load(into, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    check_base(into[BASE] or None, module, folder)


def check_base(saved: str | None, module: nn.Module, folder: str) -> None:
    """Raises CheckpointError when adapters were trained beside other weights than those of the module."""
    here = lora.base_of(module)
    if saved != here:
        raise CheckpointError(
            f"the adapters in {folder} were trained beside other weights (fingerprint {saved}) than these ({here}): "
            "give model.init_from, or the seed, that the run began with"
        )


def _room(unit: Unit, tensors: Mapping[str, Any], averaged: bool) -> Content:
    """Empty vectors for what the checkpoint has of a unit."""
    num, name = unit.stop - unit.start, unit.entries[0].name
    if f"model.{name}" not in tensors:
        return Content({WEIGHT: unit.own}, {})  # beside adapters: what the run begins with
    vectors = {WEIGHT: torch.empty(num, dtype=unit.dtype, device=unit.device)}
    for kind, dtype in _kinds(unit, tensors)[0].items():
        vectors[kind] = torch.empty(num, dtype=dtype, device=unit.device)
    if averaged and unit.trained and f"ema.{name}" in tensors:
        vectors[EMA] = torch.empty(num, dtype=unit.dtype, device=unit.device)
    return Content(vectors, {})


def _kinds(unit: Unit, tensors: Mapping[str, Any]) -> tuple[dict[str, torch.dtype], list[str]]:
    """What the checkpoint has of a unit's optimizer: vectors with their types, counters."""
    first = unit.entries[0]
    prefix = f"optimizer.{first.name}."
    found = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix) and unit.trained}
    found = {kind: t for kind, t in found.items() if "." not in kind}
    shape = tuple(first.parameter.shape)
    vectors = {kind: t.properties.dtype for kind, t in found.items() if tuple(t.size) == shape}
    return vectors, [kind for kind in found if kind not in vectors]


def _buffers(state: TrainState) -> dict[str, Tensor]:
    """Room for what a model has beside its parameters."""
    known = {e.name for u in state.layout.units for e in u.entries}
    return {n: torch.empty_like(t).contiguous() for n, t in state.module.state_dict().items() if n not in known}


def _rows(state: TrainState) -> list[Row]:
    """What this rank writes: its part, if it is of the first group that holds everything, else nothing."""
    place = state.layout.place
    first = place.groups[0]
    rows = rows_of(state, state.contents(), place.rank == first[0]) if place.rank in first else []
    if lora.base_of(state.module) is None:
        return rows
    return [row for row in rows if row.path[0] != "model" or lora.is_adapter(row.path[1])]


def _words(state: TrainState) -> dict[str, str]:
    """What the first writer says beside the tensors."""
    base, place = lora.base_of(state.module), state.layout.place
    return {BASE: base} if base is not None and place.rank == place.groups[0][0] else {}


def _folder_of(folder: str, state: TrainState) -> str:
    """Where this writer's files go; it is made."""
    first = state.layout.place.groups[0]
    if len(first) == 1:
        return folder
    own = Path(folder) / part_name(first.index(state.layout.place.rank))
    own.mkdir(exist_ok=True)
    return str(own)


def _save(folder: str, rows: Sequence[Row], words: Mapping[str, str]) -> None:
    try:
        quiet()
        dcp.save({}, storage_writer=dcp.FileSystemWriter(folder), planner=Writing(rows, words), no_dist=True)
    except FAULTS as fault:
        raise CheckpointError(f"cannot write checkpoint {folder}: {cause(fault)}") from fault


def _copy(rows: Sequence[Row]) -> list[Row]:
    """The same on the CPU, for good."""
    return [dataclasses.replace(row, values=row.values.detach().to("cpu", copy=True)) for row in rows]


def cause(fault: BaseException) -> str:
    """What went wrong, for a person: what the system said, where it did.

    The library's exception (no `Exception`, it derives from BaseException) holds the cause of each rank; a zip archive
    that can't be closed hides why it could not be written.
    """
    first: BaseException = fault
    if isinstance(fault, CheckpointException) and fault.failures:
        first = next(iter(fault.failures.values()))[0]
    chain: BaseException | None = first
    while chain is not None and not isinstance(chain, OSError):
        chain = chain.__cause__ or chain.__context__
    said = chain or first
    return f"{type(said).__name__}: {said}"


def quiet() -> None:
    """Silences the library's remark that no process group is there: that is what `no_dist` asked for.

    The filter stays: `warnings.catch_warnings` is not safe in a thread beside others.
    """
    warnings.filterwarnings("ignore", message=".*torch.distributed.*")
    warnings.filterwarnings("ignore", message=".*TypedStorage.*")
