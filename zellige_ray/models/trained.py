"""What of a model trains: all of it, the parameters that globs name, or adapters beside it."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Sequence

from torch import nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models import lora

SHOWN = 5


def choose_trained(module: nn.Module, config: ModelConfig, seed: int) -> None:
    """Freezes what does not train, and adds the adapters. Raises ModelError for names that match nothing."""
    if config.lora is not None:
        lora.attach(module, config.lora, _targets(module, config.lora.targets), seed)
    elif config.train is not None:
        names = [name for name, _ in module.named_parameters()]
        chosen = {name for pattern in config.train for name in _match("model.train", pattern, names, _by_glob)}
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in chosen)


def _targets(module: nn.Module, patterns: Sequence[str]) -> list[str]:
    names = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    chosen = {name for pattern in patterns for name in _match("model.lora.targets", pattern, names, _by_end)}
    return [name for name in names if name in chosen]


def _by_glob(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


def _by_end(name: str, pattern: str) -> bool:
    """`to_out.0` is the end of `blocks.3.attn1.to_out.0`; a glob is over the whole name."""
    return name == pattern or name.endswith(f".{pattern}") or _by_glob(name, pattern)


def _match(key: str, pattern: str, names: Sequence[str], fits: Callable[[str, str], bool]) -> list[str]:
    found = [name for name in names if fits(name, pattern)]
    if not found:
        raise ModelError(f"{key}: {pattern!r} matches nothing; near it are {', '.join(_near(pattern, names))}")
    return found


def _near(pattern: str, names: Iterable[str]) -> list[str]:
    """Names, and ends of names, that are spelled like the pattern."""
    ends: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        for i in range(len(parts)):
            end = ".".join(parts[i:])
            if not end[0].isdigit():
                ends.setdefault(end)
    text = pattern.strip("*.")
    return difflib.get_close_matches(text, list(ends), n=SHOWN, cutoff=0.0)
