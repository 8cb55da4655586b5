"""A run's folder on its way: made before workers start, `latest` once a step counts, gone again when none did."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import yaml

from zellige_ray.actors.prepared import Prepared
from zellige_ray.config import RunConfig
from zellige_ray.data.record import read
from zellige_ray.errors import ConfigError, DataError
from zellige_ray.files import write_file
from zellige_ray.monitor import run_folder
from zellige_ray.training import checkpoint_files

LATEST = "latest"


def new_folder(config: RunConfig) -> Path:
    """A name by config and time that nothing has yet."""
    parent, stamp = Path(config.folder).resolve(), time.strftime("%Y%m%d-%H%M%S")
    folder, number = parent / f"{config.name}-{stamp}", 1
    while folder.exists():
        number += 1
        folder = parent / f"{config.name}-{stamp}-{number}"
    return folder


def write_folder(prepared: Prepared) -> None:
    """Makes the run folder with its resolved config. Raises ConfigError when it can't."""
    text = yaml.safe_dump(prepared.config.model_dump(mode="json"), sort_keys=False)
    try:
        prepared.folder.mkdir(parents=True, exist_ok=True)
        write_file(prepared.folder / run_folder.CONFIG, text)
    except OSError as fault:
        raise ConfigError(
            f"cannot write the run folder {prepared.folder}: {fault.strerror or fault}; set folder"
        ) from fault


def point_latest(folder: Path) -> str:
    """Points `latest` beside the run folder to it, at once; what kept it from that, in words."""
    new = folder.parent / f".{LATEST}-{os.getpid()}"
    try:
        new.unlink(missing_ok=True)
        new.symlink_to(folder.name)
        new.replace(folder.parent / LATEST)
    except OSError as fault:
        return f"{folder.parent / LATEST} does not point to {folder.name}: {fault.strerror or fault}"
    return ""


def left_behind(prepared: Prepared) -> str:
    """What a run that ended early leaves, in words; its folder is removed when it is new and no step counts."""
    folder = prepared.folder
    if checkpoint_files.newest(folder) is not None:
        return f"to go on: the same command, with resume={_short(folder)}"
    if prepared.start.checkpoint is None and not _has_steps(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return ""
    return f"no checkpoint is complete; what the run left is in {_short(folder)}"


def _has_steps(folder: Path) -> bool:
    path = folder / run_folder.LEDGER
    try:
        return path.exists() and any(record.event is None for record in read(path))
    except DataError:
        return True  # whatever is in it, it stays


def _short(path: Path) -> str:
    """A path as a person would type it here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
