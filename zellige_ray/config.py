"""The run configuration: one YAML file, validated before any worker starts, with `key=value` overrides."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from zellige_ray.errors import ConfigError
from zellige_ray.settings import (
    BatchConfig,
    CheckpointConfig,
    CodecConfig,
    DataConfig,
    EngineConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    PageConfig,
    PlacementConfig,
    PreviewConfig,
    RunConfig,
    SinkName,
    TextConfig,
    WorkersConfig,
)

__all__ = [
    "BatchConfig",
    "CheckpointConfig",
    "CodecConfig",
    "DataConfig",
    "EngineConfig",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PageConfig",
    "PlacementConfig",
    "PreviewConfig",
    "RunConfig",
    "SinkName",
    "TextConfig",
    "WorkersConfig",
    "dump_config",
    "entry_of",
    "load_config",
    "parse_config",
    "section_of",
]


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """The validated configuration of a YAML file and `a.b=value` overrides (values are read as YAML).

    Raises ConfigError: the file can't be read, a key is unknown (the nearest is named), a type is wrong (path, expected
    and got), settings contradict each other.
    """
    try:
        value = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except (
        OSError,
        ValueError,
        RecursionError,
        yaml.YAMLError,
    ) as fault:  # ValueError: bad text, a date like 2001-99-99
        raise ConfigError(f"cannot read config {path}: {fault}") from fault
    if not isinstance(value, dict):
        raise ConfigError(f"config {path} must be a mapping of keys, it is {type(value).__name__}")
    for text in overrides:
        key, sign, raw = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"override {text!r} is not of the form key=value")
        _set(value, key.split("."), _scalar(text, raw))
    return parse_config(value)


def parse_config(value: Mapping[str, Any]) -> RunConfig:
    """The validated configuration of plain values; raises ConfigError like `load_config`, with one line per fault."""
    try:
        return RunConfig.model_validate(value)
    except ValidationError as fault:
        lines: dict[str, list[str]] = {}
        for error in fault.errors():
            where, what = _explain(error)
            lines.setdefault(where, []).append(what)
        raise ConfigError("\n".join(_join(where, whats) for where, whats in lines.items())) from fault


def dump_config(config: RunConfig) -> str:
    """The configuration as YAML, every key present; `load_config` reads it back as an equal value."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """Safe YAML that also reads `1e-3` as a number, as people mean it, and refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            keys = [key.value for key, _ in node.value]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: the key {twice!r} is given twice in this section")
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _scalar(text: str, raw: str) -> Any:
    try:
        return yaml.load(raw, _Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as fault:
        raise ConfigError(f"override {text!r}: the value is not YAML: {fault}") from fault


def _set(value: dict[str, Any], path: list[str], leaf: Any) -> None:
    for key in path[:-1]:
        if value.get(key) is None:  # a section that is null, such as model.lora, begins here
            value[key] = {}
        value = value[key]
        if not isinstance(value, dict):
            raise ConfigError(f"override {'.'.join(path)}: {key} is not a section")
    value[path[-1]] = leaf


def _explain(error: Any) -> tuple[str, str]:
    """(path of the key, what is wrong with it) of one pydantic error."""
    path = error["loc"]
    if error["type"] == "extra_forbidden":
        known = _keys_at(path[:-1]) or []
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.0)
        return ".".join(map(str, path)), f"unknown key, the nearest known one is {near[0] if near else sorted(known)}"
    where = ".".join(str(key) for i, key in enumerate(path) if isinstance(key, int) or _may_follow(path[:i], key))
    if error["type"] == "missing":
        return where, "required, and not given"
    if error["type"] == "value_error":
        return where, str(error["ctx"]["error"])
    if error["type"] in ("model_type", "model_attributes_type"):
        return where, f"expected a section with keys, got {error['input']!r}"
    expected = re.sub(r"^(Input|String|Tuple|List|Value) should (be|have|match)", "expected", error["msg"])
    return where, f"{expected}, got {error['input']!r}"


def _join(where: str, whats: list[str]) -> str:
    """One line for one key, also where a union has several ways to be wrong."""
    *others, last = whats
    text = " or ".join([*(what.rpartition(", got ")[0] for what in others), last]) if others else last
    return f"{where or 'config'}: {text.replace(' or expected ', ' or ')}"


def _may_follow(path: Iterable[Any], key: Any) -> bool:
    keys = _keys_at(path)
    return keys is None or key in keys


def _keys_at(path: Iterable[Any]) -> list[str] | None:
    """The keys that may follow a path; None where names are the user's own."""
    model: type[BaseModel] = RunConfig
    named = False
    for key in path:
        if named:
            named = False
            continue
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        section, named = section_of(annotation) or entry_of(annotation), entry_of(annotation) is not None
        if section is None:
            return []
        model = section
    return None if named else list(model.model_fields)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a key of this type holds, also where it may be null; None for a key without a section."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)] or [annotation]
    (kind, *others) = kinds
    return kind if not others and isinstance(kind, type) and issubclass(kind, BaseModel) else None


def entry_of(annotation: Any) -> type[BaseModel] | None:
    """The section that each name of a mapping holds, also where that may be null; None for a key of another type."""
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is dict:
            return section_of(get_args(kind)[1])
    return None
