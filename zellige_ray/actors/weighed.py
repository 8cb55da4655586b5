"""Weighed: the memory model that plans count with, from the workers, or from an earlier driver of this run."""

from __future__ import annotations

import json
from pathlib import Path

from zellige_ray.actors.crew import Crew, WorkersStarved
from zellige_ray.config import RunConfig
from zellige_ray.monitor import run_folder
from zellige_ray.placement import HardwareProfile
from zellige_ray.placement.memory import MemoryModel


def find_memory(config: RunConfig, folder: Path, known: HardwareProfile | None, crew: Crew) -> MemoryModel | None:
    """The heaviest model that any worker weighed; None, the presets' formula, where a hardware preset is named.

    known: what an earlier driver found; then its model is read from the run folder. None too where a worker has not
    even the memory to weigh.
    """
    path = folder / run_folder.MEMORY
    if config.placement.hardware is not None:
        return None
    if known is not None and path.exists():
        return MemoryModel.from_dict(json.loads(path.read_text(encoding="utf-8")))
    try:
        replies = crew.all("weigh", lambda epoch: {w: (epoch.number,) for w in epoch.workers})
    except WorkersStarved:
        return None
    models: list[MemoryModel] = [r.value for r in replies.values()]
    heaviest = max(models, key=lambda m: m.token_bytes())
    path.write_text(json.dumps(heaviest.to_dict(), indent=1), encoding="utf-8")
    return heaviest
