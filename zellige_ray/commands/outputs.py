"""Files that a command is asked to write: checked before it works for them, and written as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from zellige_ray.errors import ConfigError, ZelligeError
from zellige_ray.files import write_file

PICTURES = (".svg", ".png")


def check_outputs(
    outputs: Mapping[str, str | None], inputs: Iterable[str | None] = (), endings: Mapping[str, tuple[str, ...]] = {}
) -> None:
    """Nothing, if all files that are asked for can be written. Raises ConfigError naming option, path and cause.

    outputs: option -> path. inputs: what the command reads; no output may be one of them, nor two the same file.
    endings: option -> those that its file's name may have.
    """
    taken = [Path(name) for name in inputs if name is not None and Path(name).is_file()]
    asked: list[tuple[str, Path]] = []
    for option, name in outputs.items():
        if name is None:
            continue
        _check(option, Path(name), endings.get(option, ()))
        if any(_same(Path(name), path) for path in taken):
            raise ConfigError(f"{option} {name}: the command reads this file, it would be lost; name another")
        for other, path in asked:
            if _same(Path(name), path):
                raise ConfigError(f"{option} {name}: {other} is the same file; name another")
        asked.append((option, Path(name)))


def write_output(option: str, name: str, make: Callable[[], bytes | str]) -> None:
    """Writes what `make` returns. Raises ZelligeError naming option, path and cause when the disk refuses."""
    data = make()
    try:
        write_file(Path(name), data)
    except OSError as fault:
        raise ZelligeError(f"{option} {name}: it can't be written: {fault.strerror or fault}") from fault


def _check(option: str, path: Path, endings: tuple[str, ...]) -> None:
    if endings and path.suffix not in endings:
        raise ConfigError(f"{option} {path}: the ending must be one of {', '.join(endings)}")
    if path.is_dir():
        raise ConfigError(f"{option} {path}: it is a folder, name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: the folder {path.parent} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{option} {path}: it can't be written, its permissions forbid it")


def _same(one: Path, other: Path) -> bool:
    """Are they one file, also by links? Devices take any number of outputs."""
    if one.exists() and other.exists():
        return one.is_file() and one.samefile(other)
    return one.resolve() == other.resolve()
