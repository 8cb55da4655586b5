"""The Python face: what the commands do, as functions on values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from zellige_ray.config import RunConfig, load_config
from zellige_ray.monitor.events import Event


def train(
    config: RunConfig | str | Path,
    overrides: Iterable[str] = (),
    on_event: Callable[[Event], None] = lambda event: None,
) -> dict[str, Any]:
    """Trains until the last step and returns what `summary.json` says.

    config: a RunConfig, or the path of a YAML file, to which `key=value` overrides are applied. on_event: called in the
    calling thread with every event of the run. Raises ConfigError before any worker starts, other faults by name.
    """
    from zellige_ray.actors.launch import train as launch

    if not isinstance(config, RunConfig):
        config = load_config(config, overrides)
    elif tuple(overrides):
        raise TypeError("overrides go with a path; a RunConfig is complete, use config.model_copy(update=...)")
    return launch(config, on_event)
