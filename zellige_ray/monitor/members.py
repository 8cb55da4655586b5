"""Members: which worker and node each rank of the current epoch is, as the driver wrote it into the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from zellige_ray.monitor import run_folder


class RankName(NamedTuple):
    """A rank's worker, the node that it runs on, and what it may fill; None where that is not known. Units: bytes."""

    worker: str
    node: str
    memory_bytes: int | None = None


UNKNOWN = RankName("", "")


def read_members(folder: Path) -> tuple[int, tuple[RankName, ...]]:
    """(epoch, names in rank order); (-1, nothing) where the file is missing or just being replaced."""
    try:
        value = json.loads((folder / run_folder.MEMBERS).read_text(encoding="utf-8"))
        return int(value["epoch"]), tuple(
            RankName(str(m["worker"]), str(m["node"]), m.get("memory_bytes")) for m in value["members"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return -1, ()


class Names:
    """Looks names up again whenever the epoch is another one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._epoch, self._names = -1, tuple[RankName, ...]()

    def of(self, epoch: int, world_size: int) -> tuple[RankName, ...]:
        """One name per rank; unknown ones are empty."""
        if epoch != self._epoch or len(self._names) != world_size:
            self._epoch, self._names = read_members(self._folder)
        known = self._names if self._epoch == epoch else ()
        return known if len(known) == world_size else (UNKNOWN,) * world_size
