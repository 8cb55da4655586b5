"""Files that appear only when they are complete: written under a draft's name, synced, renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from zellige_ray.errors import DataError


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file as a whole, over what was there. Raises DataError when the disk refuses; nothing is left behind."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as fault:
        with contextlib.suppress(OSError):  # where the folder is no folder there is no draft either
            draft.unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {fault.strerror or fault}") from fault
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
