"""Turn media and captions into a cache of latents, by the `data` section of a YAML config.

What is in the cache already is skipped, so an encoding that was stopped goes on where it stood. Trimmed clips, scaled
frames, cut captions and files that can't be used are counted and listed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from zellige_ray.config import load_config
from zellige_ray.configs import choose, configs
from zellige_ray.words import counted


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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from zellige_ray.data.cache import INDEX, SETTINGS, LatentCache
    from zellige_ray.data.encode import encode, prepare
    from zellige_ray.models.architecture import resolve
    from zellige_ray.models.specs import get_spec

    spec = get_spec(resolve(config.model).name)
    console = Console(stderr=args.json)
    if (Path(config.data.source) / SETTINGS).is_file():
        prepare(config.data, spec)
        samples = len(LatentCache(Path(config.data.source)).index())
        console.print(
            f"{config.data.source} is a latent cache of {counted(samples, 'sample')} already", highlight=False
        )
        return 0
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
    ) as bar:
        tasks = {name: bar.add_task(name, total=None) for name in ("download", "encode")}
        report, cache = encode(
            config.data, spec, lambda name, done, total: bar.update(tasks[name], completed=done, total=total)
        )
    if args.json:
        json.dump(
            {"cache": str(cache.folder), "fingerprint": cache.index().fingerprint, **report.to_json()}, sys.stdout
        )
        sys.stdout.write("\n")
    else:
        for line in [*report.lines(), f"latents in {cache.folder}, listed in {INDEX}"]:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0
