"""Run configurations that come with the package, and how words of a command line name one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

configs: dict[str, Path] = {
    "mini": Path(__file__).parent / "mini.yaml",
}


def choose(words: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """The config that `[CONFIG] [key=value ...]` names, and its overrides; without a CONFIG, the mini set's.

    A first word with `=` in it is an override, unless a file of that name exists.
    """
    if words and ("=" not in words[0] or Path(words[0]).exists()):
        return configs.get(words[0], Path(words[0])), tuple(words[1:])
    return configs["mini"], tuple(words)
