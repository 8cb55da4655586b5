"""The quarantine: media files that could not be used, with the reason, so that none is tried twice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from zellige_ray.data.atomic import replace_file
from zellige_ray.errors import DataError

NAME = "quarantine.jsonl"


@dataclass(frozen=True, slots=True)
class Refused:
    """One file that stays out. key: of the file as it was; a changed file is tried again."""

    id: str
    file: str
    key: str
    reason: str


class Quarantine:
    """The refused files of one cache folder, kept beside the latents."""

    def __init__(self, folder: Path) -> None:
        """Raises DataError for a list that can't be read."""
        self._path = folder / NAME
        self._refused: dict[str, Refused] = {}
        if not self._path.exists():
            return
        try:
            for line in self._path.read_text(encoding="utf-8").splitlines():
                row = Refused(**json.loads(line))
                self._refused[row.id] = row
        except (OSError, ValueError, TypeError) as fault:
            raise DataError(f"{self._path} can't be read: {fault}; delete it to try all files again") from fault

    def find(self, name: str, key: str) -> Refused | None:
        """Why this sample was refused; None for one that was not, or whose file has changed since."""
        row = self._refused.get(name)
        return row if row is not None and row.key == key else None

    def add(self, row: Refused) -> None:
        """Refuses one file, and saves the list."""
        self._refused[row.id] = row
        rows = [{"id": r.id, "file": r.file, "key": r.key, "reason": r.reason} for r in self._refused.values()]
        replace_file(self._path, "".join(f"{json.dumps(value)}\n" for value in rows).encode())
