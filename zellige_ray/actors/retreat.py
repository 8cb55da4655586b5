"""Retreat: where a run goes on when nobody holds its state any more, and when that has no prospect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zellige_ray.actors.membership import StateLost
from zellige_ray.data.sampler import SamplerState
from zellige_ray.training import checkpoint_files

MAX_FRUITLESS = 5  # deaths of all workers in a row without a new step: that is not bad luck


@dataclass(frozen=True, slots=True)
class Place:
    """A step whose state can be had: from a checkpoint, or from the seed where `checkpoint` is None."""

    checkpoint: str | None
    step: int
    sampler: SamplerState
    name: str


class Retreat:
    """Remembers how far the run had come each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fruitless, self._furthest = 0, -1

    def place(self, reached: int) -> Place:
        """The newest complete checkpoint, or the beginning. reached: the last committed step.

        Raises StateLost when all workers have died MAX_FRUITLESS times more and none came past the same step.
        """
        newest = checkpoint_files.newest(self._folder)
        place = Place(None, 0, SamplerState(), "the beginning: there was no checkpoint")
        if newest is not None:
            position = checkpoint_files.read_position(newest)
            place = Place(str(newest), position.step, SamplerState.from_json(position.sampler), newest.name)
        self._fruitless = 0 if reached > self._furthest else self._fruitless + 1
        self._furthest = max(reached, self._furthest)
        if self._fruitless >= MAX_FRUITLESS:
            raise StateLost(
                f"all workers died {MAX_FRUITLESS + 1} times and none came past step {self._furthest}, none of "
                f"them holds the state; going on means {place.name}: see the workers' logs for the cause"
            )
        return place
