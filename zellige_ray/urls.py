"""Stores behind URLs that fsspec knows: named before anything starts, folders fetched from them and put there.

What a URL says beside its protocol may hold a password: it is in no message.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from zellige_ray.errors import ConfigError


def is_url(place: str) -> bool:
    """Whether a place is behind a URL, rather than a path of this machine."""
    return "://" in place


def check_url(url: str, knob: str) -> None:
    """Raises ConfigError where no driver of the URL's protocol is known, or its package is not installed."""
    from fsspec.registry import get_filesystem_class, known_implementations

    protocol = url.partition("://")[0]
    try:
        get_filesystem_class(protocol)
    except ValueError as fault:
        raise ConfigError(f"{knob} begins with {protocol}://, which fsspec has no driver for") from fault
    except ImportError as fault:
        driver = known_implementations[protocol]["class"].partition(".")[0]
        package = (fault.name or driver) if driver == "fsspec" else driver
        raise ConfigError(
            f"{knob} begins with {protocol}://, whose driver {package} is not installed: pip install {package}, here "
            "and where workers run"
        ) from fault


def join(url: str, *parts: str) -> str:
    """The URL of what lies below a folder's."""
    return "/".join([url.rstrip("/"), *parts])


def listing(url: str) -> dict[str, int]:
    """Sizes in bytes of the files of a folder, by their paths in it; empty where there is none. Raises OSError."""
    fs, root = _open(url)
    found: dict[str, Any] = _asked(url, lambda: fs.find(root, detail=True))
    names = {name: name.removeprefix(root).lstrip("/") for name in found}
    outside = [name for name in names.values() if ".." in PurePosixPath(name).parts]
    if outside:
        raise OSError(f"{outside[0]!r} in the store lies outside of its folder")
    return {short: int(found[name]["size"] or 0) for name, short in names.items()}


def fetch(url: str, folder: Path, names: Iterable[str]) -> None:
    """Copies files of a folder, by their paths in it as `listing` gives them. Raises OSError."""
    fs, root = _open(url)
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        _asked(url, lambda name=name, target=target: fs.get_file(join(root, name), str(target)))


def put(folder: Path, url: str, last: str) -> None:
    """Copies a folder's files; the one named `last` comes last, so that who sees it sees all. Raises OSError."""
    fs, root = _open(url)
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    for name in sorted(names, key=lambda name: name == last):
        target = join(root, name)
        _asked(url, lambda target=target: fs.makedirs(target.rpartition("/")[0], exist_ok=True))
        _asked(url, lambda name=name, target=target: fs.put_file(str(folder / name), target))


def write(url: str, data: bytes) -> None:
    """Writes one file, over what was there. Raises OSError."""
    fs, path = _open(url)
    _asked(url, lambda: fs.makedirs(path.rpartition("/")[0], exist_ok=True))
    _asked(url, lambda: fs.pipe_file(path, data))


def remove(url: str, first: str) -> None:
    """Removes a folder, its file `first` before the others. Raises OSError."""
    fs, root = _open(url)
    if _asked(url, lambda: fs.exists(join(root, first))):
        _asked(url, lambda: fs.rm_file(join(root, first)))
    _asked(url, lambda: fs.rm(root, recursive=True))


def _open(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    fs, root = _asked(url, lambda: url_to_fs(url, use_listings_cache=False))
    return fs, str(root).rstrip("/")


def _asked(url: str, ask: Any) -> Any:
    """What a driver answers; whatever kind of error it has, as an OSError."""
    try:
        return ask()
    except OSError:
        raise
    except Exception as fault:
        raise OSError(f"{url.partition('://')[0]}:// answered {type(fault).__name__}: {fault}") from fault
