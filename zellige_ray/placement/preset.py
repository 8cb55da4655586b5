"""Preset files: a YAML mapping, found by name among those shipped with the package, or by path."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from zellige_ray.errors import ConfigError

FOLDER = Path(__file__).parent / "presets"


def preset_names(kind: str) -> list[str]:
    """Names of the shipped presets of a kind (`hardware`, `models`), sorted."""
    return sorted(path.stem for path in (FOLDER / kind).glob("*.yaml"))


def read_preset(kind: str, name_or_path: str | Path) -> dict[str, Any]:
    """The mapping of a preset; raises ConfigError, naming the nearest shipped preset, when there is none."""
    shipped = FOLDER / kind / f"{name_or_path}.yaml"
    path = shipped if shipped.is_file() else Path(name_or_path)
    if not path.is_file():
        names = preset_names(kind)
        near = difflib.get_close_matches(str(name_or_path), names, n=1, cutoff=0.0)
        raise ConfigError(
            f"{kind} preset {str(name_or_path)!r} is neither shipped nor a file; the nearest is {near[0]!r}, "
            f"all: {', '.join(names)}"
        )
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as fault:
        raise ConfigError(f"cannot read {kind} preset {path}: {fault}") from fault
    if not isinstance(value, dict):
        raise ConfigError(f"{kind} preset {path} must be a mapping of keys, it is {type(value).__name__}")
    return {"name": path.stem, **value}


def check_keys(where: str, value: Mapping[str, Any], required: set[str], optional: set[str]) -> None:
    """Raises ConfigError for a missing key, or an unknown one (the nearest known key is named)."""
    for key in value:
        if key not in required | optional:
            near = difflib.get_close_matches(str(key), sorted(required | optional), n=1, cutoff=0.0)
            raise ConfigError(f"{where}: unknown key {key!r}, the nearest known key is {near[0]!r}")
    missing = sorted(required - set(value))
    if missing:
        raise ConfigError(f"{where}: required and not given: {', '.join(missing)}")


def positive(where: str, key: str, value: Any) -> float:
    """The value as a float > 0; raises ConfigError otherwise (YAML reads 190e12 as text, so text is converted)."""
    try:
        number = float(value)
    except (TypeError, ValueError) as fault:
        raise ConfigError(f"{where}: {key} must be a number, got {value!r}") from fault
    if isinstance(value, bool) or not 0 < number < float("inf"):
        raise ConfigError(f"{where}: {key} must be positive and finite, got {value!r}")
    return number


def positive_int(where: str, key: str, value: Any) -> int:
    """The value as an int >= 1; raises ConfigError otherwise."""
    number = positive(where, key, value)
    if number != int(number):
        raise ConfigError(f"{where}: {key} must be a whole number, got {value!r}")
    return int(number)
