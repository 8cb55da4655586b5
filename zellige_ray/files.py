"""Files: those that appear only when they are complete, and the folder that runs of a user share."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def user_cache() -> Path:
    """What runs of a user share on this machine: the folder that ZELLIGE_CACHE names, else one of the home folder."""
    return Path(os.environ.get("ZELLIGE_CACHE") or Path.home() / ".cache" / "zellige")


def write_file(path: Path, data: bytes | str, sync: bool = False) -> None:
    """Writes a file as a whole, over what was there; through a link, the file that it points to.

    A device or a pipe is written into, since a rename would take its place. sync: return when it is on the disk.
    Raises OSError when the disk refuses; the old file is then as before, and no draft is left.
    """
    raw = data.encode() if isinstance(data, str) else data
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        with path.open("wb", buffering=0) as stream:
            view = memoryview(raw)
            while view:
                view = view[stream.write(view) :]
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("wb") as file:
            file.write(raw)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # where the folder is no folder there is no draft either
            draft.unlink(missing_ok=True)
        raise
