"""Checkpoints as folders: written under a temporary name, sealed by a marker, renamed; only complete ones are seen.

The marker holds the size of every file: one that was cut off afterwards is passed over, with its reason. Torch-free,
so that a driver can seal, find and prune them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zellige_ray.config import ModelConfig, RunConfig
from zellige_ray.errors import CheckpointError
from zellige_ray.files import write_file
from zellige_ray.json_lines import parse_json

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


def partial_name(run: Path, step: int) -> Path:
    """Where step `step` is written before it is complete."""
    return run / FOLDER / f".step-{step:08d}.partial"


def partial_folder(run: Path, step: int) -> Path:
    """An empty folder, under a temporary name, to write step `step` into."""
    folder = partial_name(run, step)
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
    sizes = {p.relative_to(partial).as_posix(): p.stat().st_size for p in sorted(partial.rglob("*")) if p.is_file()}
    value = {"format": FORMAT, **asdict(position), "files": sizes}
    write_file(partial / MARKER, json.dumps(value, indent=1), sync=True)
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
    """The newest complete checkpoint of a run folder; those that were damaged since are passed over."""
    return next((path for path in reversed(_sealed(run)) if not damage(path)), None)


def damage(checkpoint: Path) -> str:
    """What is wrong with the files of a sealed checkpoint, in words; empty when all are as they were sealed."""
    try:
        sizes = _marker(checkpoint).get("files", {})
        for name, size in sizes.items():
            path = checkpoint / name
            if not path.is_file():
                return f"{name} is gone"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, it had {size}"
    except (CheckpointError, OSError, AttributeError) as fault:
        return str(fault)
    return ""


def damages(run: Path, behind: Path | None = None) -> list[str]:
    """A sentence for each sealed checkpoint that is damaged; only of those that are newer than `behind`."""
    later = [path for path in _sealed(run) if behind is None or path > behind]
    return [f"checkpoint {path.name} is passed over: {why}" for path in later if (why := damage(path))]


def prune(run: Path, keep: int, spared: Collection[Path] = ()) -> None:
    """Removes all but the `keep` newest complete checkpoints and the `spared`, and what an interrupted save left."""
    complete = [path for path in _sealed(run) if not damage(path)]
    for old in [*(path for path in complete[:-keep] if path not in spared), *(run / FOLDER).glob(".*.partial")]:
        shutil.rmtree(old, ignore_errors=True)


def _sealed(run: Path) -> list[Path]:
    return sorted(p.parent for p in (run / FOLDER).glob(f"step-*/{MARKER}"))


def find(resume: str) -> tuple[Path, Path]:
    """(run folder, checkpoint folder) of what `resume` names: a run folder, or one of its checkpoints.

    Raises CheckpointError when there is no complete checkpoint.
    """
    path = Path(resume).resolve()
    if (path / MARKER).is_file():
        why = damage(path)
        if why:
            raise CheckpointError(f"checkpoint {resume} is damaged: {why}; name its run folder to take an older one")
        return path.parent.parent, path
    if path.parent.name == FOLDER:
        raise CheckpointError(f"checkpoint {resume} is not complete: it has no {MARKER}; name its run folder instead")
    checkpoint = newest(path)
    if checkpoint is None:
        more = "".join(f"; {text}" for text in damages(path))
        raise CheckpointError(f"no complete checkpoint in {path / FOLDER}; check resume={resume}{more}")
    return path, checkpoint


def at_step(run: Path, step: int) -> Path:
    """The complete checkpoint of a step; CheckpointError names those that there are."""
    found = run / FOLDER / f"step-{step:08d}"
    if not (found / MARKER).is_file():
        steps = [str(int(p.parent.name.removeprefix("step-"))) for p in sorted((run / FOLDER).glob(f"step-*/{MARKER}"))]
        raise CheckpointError(
            f"{run} has no complete checkpoint of step {step}; there are {', '.join(steps) or 'none'}"
        )
    return found


def model_of(position: Position, checkpoint: Path) -> ModelConfig:
    """The configuration of the model that a checkpoint is of; CheckpointError when it says no such thing."""
    try:
        return ModelConfig(**position.model)
    except (TypeError, ValidationError) as fault:
        raise CheckpointError(f"checkpoint {checkpoint / MARKER} does not describe a model: {fault}") from fault


def read_position(checkpoint: Path) -> Position:
    """What a complete checkpoint says of itself; raises CheckpointError when it can't be read."""
    value = _marker(checkpoint)
    try:
        return Position(**{k: v for k, v in value.items() if k not in ("format", "files")})
    except TypeError as fault:
        raise CheckpointError(f"cannot read checkpoint {checkpoint / MARKER}: {fault}") from fault


def _marker(checkpoint: Path) -> dict[str, Any]:
    try:
        value = parse_json((checkpoint / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise CheckpointError(f"cannot read checkpoint {checkpoint / MARKER}: {fault}") from fault
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise CheckpointError(f"checkpoint {checkpoint} is not of format {FORMAT}")
    return value


def check(position: Position, config: RunConfig, text_dim: int, fingerprint: str) -> None:
    """Raises CheckpointError, naming the settings, when a checkpoint is of another model, data set or seed.

    Where its first weights came from may have moved since.
    """
    wanted = {k: v for k, v in model_identity(config).items() if k != "init_from"}
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
        wrong.append("the data set is another one (samples, shapes, ratios or data.held_out changed)")
    if wrong:
        raise CheckpointError("the checkpoint is of another run: " + "; ".join(wrong))


def model_identity(config: RunConfig) -> dict[str, Any]:
    """The settings that give the model its parameters."""
    return config.model.model_dump(mode="json", exclude={"checkpointing"})
