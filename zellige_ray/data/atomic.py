"""Files of a data set that appear only when they are complete, and are on the disk by then."""

from __future__ import annotations

from pathlib import Path

from zellige_ray.errors import DataError
from zellige_ray.files import write_file


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file as a whole, over what was there. Raises DataError when the disk refuses; nothing is left behind."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data, sync=True)
    except OSError as fault:
        raise DataError(f"cannot write {path}: {fault.strerror or fault}") from fault
