"""The command line: finds the verb, loads only its module, turns errors into exit codes.

Exit codes: 0 fine, 1 a named error, 2 bad input, 3 the pool of workers, 130 interrupted.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from zellige_ray.commands.arguments import run_command
from zellige_ray.errors import ZelligeError

INTERRUPTED = 130
BAD_INPUT = 2
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class Verb(NamedTuple):
    """One command: the module that has `add_arguments` and `run`, and its line in the help."""

    module: str
    summary: str


verbs: dict[str, Verb] = {
    "train": Verb("zellige_ray.commands.train", "train a Diffusion Transformer by a YAML config"),
    "plan": Verb("zellige_ray.commands.plan", "place one batch, and show the load of every rank"),
    "simulate": Verb("zellige_ray.commands.simulate", "compare policies over a stream of batches, without a GPU"),
    "profile": Verb("zellige_ray.commands.profile", "measure this machine with the model's own blocks, for planning"),
    "bench": Verb("zellige_ray.commands.bench", "run a benchmark and print its figures"),
    "encode": Verb("zellige_ray.commands.encode", "turn media and captions into a cache of latents"),
    "data": Verb("zellige_ray.commands.data", "fetch the mini data set, or describe a data set"),
    "config": Verb("zellige_ray.commands.config", "check a configuration, and show every key with its value"),
    "ledger": Verb("zellige_ray.commands.ledger", "verify that a run used every sample exactly once per pass"),
    "doctor": Verb("zellige_ray.commands.doctor", "look at this machine before a run does, and name what to mend"),
    "top": Verb("zellige_ray.commands.top", "watch a run in a terminal"),
    "export": Verb("zellige_ray.commands.export", "write a run's weights as a folder that other tools open"),
    "report": Verb("zellige_ray.commands.report", "write the report of a run folder again"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code; prints errors on stderr, never a traceback for a ZelligeError."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except ZelligeError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return fault.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()  # the reader left (`zellige plan ... | head`)
        return 0
    except OSError as fault:
        if fault.errno not in REFUSED:
            raise
        where = fault.filename or "the output"
        print(f"error: {where} can't be written: {fault.strerror}; free space, or write elsewhere", file=sys.stderr)
        _forget_output()
        return ZelligeError.exit_code


def _forget_output() -> None:
    """What is still to be written to stdout goes nowhere, so that Python does not complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0 if arguments else BAD_INPUT
    if arguments[0] in ("-V", "--version"):
        from zellige_ray import __version__

        print(f"zellige {__version__}")
        return 0
    name, *rest = arguments
    if name not in verbs:
        near = difflib.get_close_matches(name, verbs, n=1, cutoff=0.0)[0]
        print(f"error: unknown command {name!r}; did you mean {near!r}? `zellige --help` lists all", file=sys.stderr)
        return BAD_INPUT
    return run_command(name, importlib.import_module(verbs[name].module), rest)


def _help() -> str:
    width = max(map(len, verbs))
    lines = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in verbs.items())
    return (
        "usage: zellige COMMAND [...]\n\n"
        "Trains Diffusion Transformers on mixed images and videos, every batch planned sequence by sequence.\n\n"
        f"commands:\n{lines}\n\n"
        "`zellige COMMAND --help` explains one. Also: --version, --help.\n"
        "Exit codes: 0 fine, 1 a named error, 2 bad input, 3 the pool of workers, 130 interrupted."
    )
