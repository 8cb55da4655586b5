"""Checkpoints as folders: written under a temporary name, sealed by a marker, renamed; only complete ones are seen.

Torch-free, so that a driver can seal, find and prune them.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zellige_ray.config import RunConfig
from zellige_ray.errors import CheckpointError

FORMAT = "zellige.checkpoint/1"
MARKER = "complete.json"
TENSORS = ".metadata"  # torch.distributed.checkpoint writes it last
FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True)
class Position:
    """What a checkpoint says besides its tensors. sampler: the state behind the last committed batch."""

    step: int
    sampler: dict[str, int]
    model: dict[str, Any]
    text_dim: int
    data_fingerprint: str
    seed: int


def partial_folder(run: Path, step: int) -> Path:
    """An empty folder, under a temporary name, to write step `step` into."""
    folder = run / FOLDER / f".step-{step:08d}.partial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def seal(partial: Path, position: Position) -> Path:
    """Marks a written folder complete and gives it its name; the new path.

    Raises CheckpointError when the tensors are not there: then driver and workers write to different disks.
    """
    if not (partial / TENSORS).is_file():
        raise CheckpointError(
            f"the driver does not see the checkpoint that a worker wrote to {partial}; "
            "set folder to storage that all nodes share"
        )
    marker = partial / MARKER
    marker.write_text(json.dumps({"format": FORMAT, **asdict(position)}, indent=1), encoding="utf-8")
    with marker.open("rb") as file:
        os.fsync(file.fileno())
    final = partial.with_name(f"step-{position.step:08d}")
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    return final


def room(run: Path) -> str:
    """Free space where a run's checkpoints go, for a person."""
    try:
        usage = shutil.disk_usage(run)
    except OSError as fault:
        return f"its folder can't be read: {fault.strerror}"
    return f"{usage.free / 1e6:.1f} MB of {usage.total / 1e6:.1f} MB are free"


def newest(run: Path) -> Path | None:
    """The newest complete checkpoint of a run folder."""
    complete = sorted(p.parent for p in (run / FOLDER).glob(f"step-*/{MARKER}"))
    return complete[-1] if complete else None


def prune(run: Path, keep: int) -> None:
    """Removes all but the `keep` newest complete checkpoints, and what an interrupted save left."""
    complete = sorted(p.parent for p in (run / FOLDER).glob(f"step-*/{MARKER}"))
    for old in [*complete[:-keep], *(run / FOLDER).glob(".*.partial")]:
        shutil.rmtree(old, ignore_errors=True)


def find(resume: str) -> tuple[Path, Path]:
    """(run folder, checkpoint folder) of what `resume` names: a run folder, or one of its checkpoints.

    Raises CheckpointError when there is no complete checkpoint.
    """
    path = Path(resume).resolve()
    if (path / MARKER).is_file():
        return path.parent.parent, path
    if path.parent.name == FOLDER:
        raise CheckpointError(f"checkpoint {resume} is not complete: it has no {MARKER}; name its run folder instead")
    checkpoint = newest(path)
    if checkpoint is None:
        raise CheckpointError(f"no complete checkpoint in {path / FOLDER}; check resume={resume}")
    return path, checkpoint


def read_position(checkpoint: Path) -> Position:
    """What a complete checkpoint says of itself; raises CheckpointError when it can't be read."""
    try:
        value = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))
        if value.pop("format") != FORMAT:
            raise CheckpointError(f"checkpoint {checkpoint} is not of format {FORMAT}")
        return Position(**value)
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise CheckpointError(f"cannot read checkpoint {checkpoint / MARKER}: {fault}") from fault


def check(position: Position, config: RunConfig, text_dim: int, fingerprint: str) -> None:
    """Raises CheckpointError, naming the settings, when a checkpoint is of another model, data set or seed."""
    wanted = model_identity(config)
    wrong = [
        f"model.{k} is {position.model.get(k)!r} there, {v!r} here"
        for k, v in wanted.items()
        if position.model.get(k) != v
    ]
    if position.text_dim != text_dim:
        wrong.append(f"text embeddings have width {position.text_dim} there, {text_dim} here")
    if position.seed != config.seed:
        wrong.append(f"seed is {position.seed} there, {config.seed} here")
    if position.data_fingerprint != fingerprint:
        wrong.append("the data set is another one (samples, shapes or data.held_out changed)")
    if wrong:
        raise CheckpointError("the checkpoint is of another run: " + "; ".join(wrong))


def model_identity(config: RunConfig) -> dict[str, Any]:
    """The settings that give the model its parameters."""
    return config.model.model_dump(exclude={"checkpointing"})
