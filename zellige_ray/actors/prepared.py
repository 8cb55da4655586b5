"""A prepared run: everything a driver needs to know, also one that starts again with nothing but this."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from zellige_ray.config import RunConfig
from zellige_ray.data.index import Index
from zellige_ray.data.sampler import SamplerState
from zellige_ray.monitor.events import NoteEvent

NAMESPACE = "zellige"  # Ray's, for the names of all our actors
DRIVER, RENDEZVOUS = "driver", "rendezvous"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins: at step 0, or behind a checkpoint."""

    step: int = 0
    sampler: SamplerState = field(default_factory=SamplerState)
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that passed every check. folder: where it writes; it exists only for a resumed run. cache: its latents.

    token: names this launch among all others. events_before: events that earlier launches left in the run folder.
    notes: what a person should know of data and checkpoints, said when the run begins.
    """

    config: RunConfig
    folder: Path
    cache: Path
    train: Index
    held_out: Index
    text_dim: int
    start: Start
    token: str
    events_before: int = 0
    notes: tuple[NoteEvent, ...] = ()

    def actor(self, role: str) -> str:
        """The name of an actor of this launch."""
        return f"{self.folder.name}.{self.token}/{role}"
