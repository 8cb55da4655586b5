"""Files that a command is asked to write, checked before it works for them."""

from __future__ import annotations

import os
from pathlib import Path

from zellige_ray.errors import ConfigError

PICTURES = (".svg", ".png")


def check_output(option: str, path: str | None, endings: tuple[str, ...] = ()) -> None:
    """Nothing, if a file can be written there or none is asked for. Raises ConfigError naming option, path and cause.

    endings: those that the file's name may have; any, when there are none.
    """
    if path is None:
        return
    target = Path(path)
    if endings and target.suffix not in endings:
        raise ConfigError(f"{option} {path}: the ending must be one of {', '.join(endings)}")
    if target.is_dir():
        raise ConfigError(f"{option} {path}: it is a folder, name a file in it")
    if not target.parent.is_dir():
        raise ConfigError(f"{option} {path}: the folder {target.parent} does not exist")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise ConfigError(f"{option} {path}: it can't be written, its permissions forbid it")
