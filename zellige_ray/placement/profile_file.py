"""Profile files: a hardware profile with measured curves, and what it was measured on, in one YAML file.

The key says where the figures hold: device, model, types, versions, threads, ranks. A file whose key is not that of the
run is stale or foreign and never used; the fields that differ are named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from zellige_ray.errors import ConfigError
from zellige_ray.files import write_file
from zellige_ray.placement.hardware import HardwareProfile, parse_hardware
from zellige_ray.placement.preset import check_keys

FORMAT = "zellige.profile/1"


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile was measured on. model: family and every size that costs time, checkpointing included."""

    device: str
    model: str
    dtype: str
    kernel: str
    threads: int
    ranks: int
    nodes: int
    torch: str
    zellige: str

    def differences(self, other: ProfileKey) -> list[str]:
        """The fields in which `other` differs, with both values."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return [f"{name} is {theirs!r} there, {ours!r} here" for name, ours, theirs in pairs if ours != theirs]

    @property
    def digest(self) -> str:
        """Of all fields, for a file's name."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Profile:
    """A measured hardware profile and its key."""

    key: ProfileKey
    hardware: HardwareProfile


def write_profile(path: Path, profile: Profile) -> None:
    """Writes the file as a whole. Raises ConfigError when the disk refuses; what was there then stays."""
    value = {"format": FORMAT, "key": asdict(profile.key), "hardware": profile.hardware.to_dict()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=120))
    except OSError as fault:
        raise ConfigError(f"cannot write profile {path}: {fault.strerror or fault}") from fault


def read_profile(path: Path) -> Profile:
    """The profile of a file; raises ConfigError naming the file and what is wrong with it."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as fault:
        raise ConfigError(f"cannot read profile {path}: {fault}") from fault
    return parse_profile(str(path), value)


def parse_profile(where: str, value: Any) -> Profile:
    """The profile of plain values; raises ConfigError naming `where` and the key that is wrong."""
    found = value.get("format") if isinstance(value, Mapping) else None
    if found != FORMAT:
        raise ConfigError(f"{where}: format is {found!r}, a profile's is {FORMAT!r}")
    check_keys(where, value, {"format", "key", "hardware"}, set())
    key, hardware = value["key"], value["hardware"]
    if not isinstance(key, Mapping) or not isinstance(hardware, Mapping):
        raise ConfigError(f"{where}: key and hardware must be mappings of keys")
    types = {f.name: int if f.type == "int" else str for f in fields(ProfileKey)}
    check_keys(f"{where}: key", key, set(types), set())
    for name, kind in types.items():
        if type(key[name]) is not kind:
            raise ConfigError(f"{where}: key.{name} must be {kind.__name__}, got {key[name]!r}")
    return Profile(ProfileKey(**key), parse_hardware(hardware))


def matching_profile(path: Path, key: ProfileKey) -> Profile:
    """The profile of a file that was measured on `key`; raises ConfigError naming the fields that differ."""
    profile = read_profile(path)
    differences = key.differences(profile.key)
    if differences:
        raise ConfigError(f"profile {path} was measured on something else: {'; '.join(differences)}")
    return profile
