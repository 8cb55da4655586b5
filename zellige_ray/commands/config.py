"""Check a configuration without starting anything, and show it with every default filled in.

zellige config [CONFIG] [key=value ...]     the resolved configuration, as YAML that `zellige train` reads
zellige config --markdown                   every key with its type, default and meaning (docs/configuration.md)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from zellige_ray.config import RunConfig, dump_config, entry_of, load_config, section_of
from zellige_ray.configs import choose, configs
from zellige_ray.errors import ConfigError

PREFACE = """# Configuration

Written by `python -m zellige_ray config --markdown` from the models in `zellige_ray/settings`; a test compares it.

A run is one YAML file. Any key can be set on the command line after it, by its path: `optimizer.lr=3e-4`,
`workers.count=4`, `preview.every=null`. All is checked before a worker starts: an unknown key names the nearest one, a
wrong type names path, expected and got, settings that contradict each other are both named.
`zellige config my.yaml optimizer.lr=3e-4` checks, starts nothing, and prints what the run would use."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "zellige config [CONFIG] [key=value ...] [--json | --markdown]"
    parser.add_argument(
        "words",
        nargs="*",
        metavar="CONFIG | key=value",
        help=f"a YAML file, or one of {', '.join(configs)} (default: mini); then overrides such as model.layers=6",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the resolved configuration as one JSON object")
    form.add_argument("--markdown", action="store_true", help="the reference of all keys; takes no CONFIG")


def run(args: argparse.Namespace) -> int:
    if args.markdown:
        if args.words:
            raise ConfigError(f"--markdown describes all keys and takes no {args.words[0]!r}: leave one of them out")
        sys.stdout.write(markdown())
        return 0
    from zellige_ray.actors.names import check_urls, look_up

    config = load_config(*choose(args.words))
    check_urls(config)
    look_up(config)
    sys.stdout.write(json.dumps(config.model_dump(mode="json")) + "\n" if args.json else dump_config(config))
    return 0


def markdown() -> str:
    """The reference of all keys, one section per part of the configuration."""
    return "\n\n".join([PREFACE, *_sections(RunConfig, "")]) + "\n"


def _sections(model: type[BaseModel], path: str) -> Iterator[str]:
    """The section of a model, then those of its parts, in the order of the file."""
    kinds = model.model_json_schema(mode="serialization")["properties"]
    lines, parts = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"], []
    for key, field in model.model_fields.items():
        where = f"{path}{key}"
        section = section_of(field.annotation)
        if section is not None:
            parts.append((section, where + "."))
        entry = entry_of(field.annotation)
        if entry is not None:
            parts.append((entry, where + ".NAME."))
        if section is field.annotation:
            continue
        default = "required" if field.is_required() else f"`{_value(field.get_default())}`"
        lines.append(f"| `{where}` | {_kind(kinds[key])} | {default} | {field.description or ''} |")
    title = f"## `{path[:-1]}`" if path else "## The run"
    yield "\n".join([title, "", (model.__doc__ or "").strip(), "", *lines])
    for part, where in parts:
        yield from _sections(part, where)


def _kind(schema: dict[str, Any]) -> str:
    """What a key takes, in words, from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "$ref" in schema:
        return "a section"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema["type"] == "array" and "items" in schema:
        return f"list of {'any of ' if 'enum' in schema['items'] else ''}{_kind(schema['items'])}"
    if schema["type"] == "array":
        kinds = [_kind(one) for one in schema["prefixItems"]]
        return f"list of {len(kinds)}: {kinds[0]}"
    if schema["type"] == "object":
        return "a mapping"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false", "null": "null"}
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    rules = [f"{sign} {schema[key]:g}" for key, sign in limits.items() if key in schema]
    if "multipleOf" in schema:
        rules.append(f"multiple of {schema['multipleOf']:g}")
    return ", ".join([f"{words[schema['type']]} {rules[0]}", *rules[1:]] if rules else [words[schema["type"]]])


def _value(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value
