"""The sources: which media files a data set has, with their captions."""

from __future__ import annotations

import difflib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from zellige_ray.data.media import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from zellige_ray.errors import DataError
from zellige_ray.json_lines import is_number, parse_json, shown
from zellige_ray.words import counted

_MEDIA_SUFFIXES = IMAGE_SUFFIXES | VIDEO_SUFFIXES
_KEYS = ("id", "file", "caption", "weight", "start", "frames")
_SHOWN = 5
_MOST_FRAMES = 10**9


@dataclass(frozen=True, slots=True)
class Item:
    """One sample to be: a media file, or the frames [start, start + frames) of one, and its caption."""

    id: str
    path: Path
    caption: str = ""
    weight: float = 1.0
    start: int = 0
    frames: int | None = None

    def key(self) -> str:
        """8 digits that change with the file (size and time of change), the cut, the caption or the weight."""
        try:
            found = self.path.stat()
        except OSError as fault:
            raise DataError(f"{self.path} can't be read: {fault.strerror or fault}") from fault
        facts = (found.st_size, found.st_mtime_ns, self.start, self.frames, self.weight, self.caption)
        return hashlib.blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source holds. uncaptioned: items without a caption of their own. ignored: files that are no media.

    orphans: captions (.txt) without a picture or clip of their name.
    """

    items: tuple[Item, ...]
    uncaptioned: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()


def list_source(source: Path) -> Listing:
    """The items of a folder or a manifest, in the order of their ids.

    Raises DataError: nothing there, nothing in it, unreadable, two items of one id.
    """
    listing = list_manifest(source) if source.suffix == ".jsonl" else list_folder(source)
    if not listing.items:
        raise DataError(
            f"data source {source} is empty: no file of {', '.join(sorted(_MEDIA_SUFFIXES))}"
            + (
                f" ({counted(others, 'other')} ignored)"
                if (others := len(listing.ignored) + len(listing.orphans))
                else ""
            )
        )
    return listing


def list_folder(folder: Path) -> Listing:
    """All media under a folder; a sample's id is its path without suffix, its caption the .txt file beside it."""
    media: dict[str, Path] = {}
    captions: dict[str, Path] = {}
    ignored: list[str] = []
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        stem, suffix = str(PurePosixPath(name).with_suffix("")), path.suffix.lower()
        if suffix in _MEDIA_SUFFIXES:
            if stem in media:
                raise DataError(f"{media[stem]} and {path} share the id {stem!r} (and the caption); rename one of them")
            media[stem] = path
        elif suffix == ".txt":
            captions[stem] = path
        else:
            ignored.append(name)
    orphans = tuple(sorted(f"{stem}.txt" for stem in captions.keys() - media.keys()))
    items = [
        Item(_checked_id(stem, path), path, _read_caption(captions[stem]) if stem in captions else "")
        for stem, path in sorted(media.items())
    ]
    uncaptioned = tuple(sorted(media.keys() - captions.keys()))
    return Listing(tuple(items), uncaptioned, tuple(sorted(ignored)), orphans)


def list_manifest(manifest: Path) -> Listing:
    """The rows of a manifest, one JSON object per line: `file` (relative to the manifest), and optionally `caption`,
    `id` (default: the file without suffix), `weight`, and `start`, `frames` for a cut of a clip.

    Raises DataError with the line's number.
    """
    try:
        lines = manifest.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise DataError(f"cannot read manifest {manifest}: {fault}") from fault
    items: dict[str, Item] = {}
    seen: dict[str, int] = {}
    uncaptioned = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{manifest} line {number}"
        row = _parse_row(line, where)
        item = _item_of(row, manifest.parent, where)
        if item.id in seen:
            raise DataError(
                f"{where}: id {item.id!r} is already that of line {seen[item.id]}; give one of them another `id`"
            )
        items[item.id], seen[item.id] = item, number
        if "caption" not in row:
            uncaptioned.append(item.id)
    return Listing(tuple(items[name] for name in sorted(items)), tuple(sorted(uncaptioned)))


def _walk(folder: Path) -> list[Path]:
    def refuse(fault: OSError) -> None:
        raise DataError(f"data source {fault.filename} can't be read: {fault.strerror or fault}") from fault

    found: list[Path] = []
    for root, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found.extend(Path(root) / name for name in sorted(files) if not name.startswith("."))
    return found


def _read_caption(path: Path) -> str:
    try:
        return " ".join(path.read_text(encoding="utf-8-sig").split())
    except (OSError, UnicodeDecodeError) as fault:
        raise DataError(f"caption {path} can't be read as UTF-8: {fault}") from fault


def _parse_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as fault:
        raise DataError(f"{where} is not JSON: {fault}") from fault
    if not isinstance(row, dict):
        raise DataError(f"{where} is not a JSON object but {type(row).__name__}")
    for key in row.keys() - set(_KEYS):
        near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.0)[0]
        raise DataError(f"{where}: unknown key {key!r}, the nearest known one is {near!r}; all are {', '.join(_KEYS)}")
    return row


def _item_of(row: dict[str, Any], folder: Path, where: str) -> Item:
    file, caption = row.get("file"), row.get("caption", "")
    if not isinstance(file, str) or not file:
        raise DataError(f"{where}: `file` must be a path, it is {shown(file)}")
    if not isinstance(caption, str):
        raise DataError(f"{where}: `caption` must be a text, it is {shown(caption)}")
    path = folder / file
    if not path.is_file():
        raise DataError(f"{where}: there is no file {path}")
    name = row.get("id", PurePosixPath(os.path.normpath(file)).with_suffix("").as_posix().lstrip("/."))
    if not isinstance(name, str):
        raise DataError(f"{where}: `id` must be a text, it is {shown(name)}")
    weight, start, frames = row.get("weight", 1.0), row.get("start", 0), row.get("frames")
    if not is_number(weight, 0, above=True):
        raise DataError(f"{where}: `weight` must be above 0 and finite, it is {shown(weight)}")
    for key, value, least in (("start", start, 0), ("frames", frames, 1)):
        if value is not None and (type(value) is not int or not least <= value <= _MOST_FRAMES):
            raise DataError(
                f"{where}: `{key}` must be a whole number from {least} to {_MOST_FRAMES}, it is {shown(value)}"
            )
    return Item(_checked_id(name, where), path, " ".join(caption.split()), float(weight), start, frames)


def _checked_id(name: str, where: object) -> str:
    parts = PurePosixPath(name).parts
    bad = not parts or ".." in parts or name.startswith("/") or "\\" in name or any(ord(c) < 32 for c in name)
    if bad or not name.isprintable() or max(len(part.encode("utf-8", "replace")) for part in parts) > 200:
        raise DataError(
            f"{where}: {name!r} can't be an id: it names files of the cache, so it must be a plain relative path"
        )
    return name
