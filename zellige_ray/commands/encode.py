"""Turn media and captions into a cache of latents, by the `data` section of a YAML config.

What is in the cache already is skipped, so an encoding that was stopped goes on where it stood. Trimmed clips, scaled
frames, cut captions and files that can't be used are counted and listed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zellige_ray.config import DataConfig, load_config
from zellige_ray.configs import choose, configs
from zellige_ray.words import counted

if TYPE_CHECKING:
    from rich.console import Console

    from zellige_ray.models.specs import ModelSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "zellige encode [CONFIG] [key=value ...] [--json]"
    parser.add_argument(
        "words",
        nargs="*",
        metavar="CONFIG | key=value",
        help=f"a YAML file, or one of {', '.join(configs)} (default: mini); then overrides, data.source=my/folder",
    )
    parser.add_argument(
        "--json", action="store_true", help="the report as one JSON object on stdout, progress on stderr"
    )


def run(args: argparse.Namespace) -> int:
    config = load_config(*choose(args.words))

    from rich.console import Console

    from zellige_ray.models.architecture import resolve
    from zellige_ray.models.specs import get_spec

    spec = get_spec(resolve(config.model).name)
    console = Console(stderr=args.json)
    answers = {name: _encode(part, spec, name, console, args.json) for name, part in config.data.each().items()}
    found = {name: answer for name, answer in answers.items() if answer is not None}
    if args.json and found:
        json.dump(found if config.data.sources is not None else found[""], sys.stdout)
        sys.stdout.write("\n")
    return 0


def _encode(data: DataConfig, spec: ModelSpec, name: str, console: Console, as_json: bool) -> dict[str, Any] | None:
    """Encodes one data set; what JSON says of it, None of a cache that is there already."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from zellige_ray.data.cache import INDEX, SETTINGS, LatentCache
    from zellige_ray.data.encode import encode, prepare

    whose = f"{name}: " if name else ""
    if (Path(data.path) / SETTINGS).is_file():
        prepare(data, spec)
        samples = len(LatentCache(Path(data.path)).index())
        console.print(f"{whose}{data.path} is a latent cache of {counted(samples, 'sample')} already", highlight=False)
        return None
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
    ) as bar:
        tasks = {phase: bar.add_task(phase, total=None) for phase in ("download", "encode")}
        report, cache = encode(
            data, spec, lambda phase, done, total: bar.update(tasks[phase], completed=done, total=total)
        )
    if not as_json:
        for line in [*report.lines(), f"latents in {cache.folder}, listed in {INDEX}"]:
            console.print(f"{whose}{line}", highlight=False, markup=False, soft_wrap=True)
    return {"cache": str(cache.folder), "fingerprint": cache.index().fingerprint, **report.to_json()}
