"""The words of a command line, by a module's own arguments: options and words may come in any order."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Protocol


class Command(Protocol):
    """A module of a command or a benchmark."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def run_command(name: str, module: Command, words: Sequence[str]) -> int:
    """Runs a command and returns its exit code; words that it does not know end the program with code 2."""
    parser = argparse.ArgumentParser(prog=f"zellige {name}", description=module.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    nests = any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in parser._actions)
    # A command with commands of its own leaves it to them to read the rest.
    args = parser.parse_args(words) if nests else parser.parse_intermixed_args(words)
    return int(module.run(args))
