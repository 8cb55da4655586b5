"""What a configuration names, looked up before anything starts: model, policy, hardware, sinks, kernel, checkpoint."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from zellige_ray.config import RunConfig
from zellige_ray.errors import ConfigError
from zellige_ray.models.architecture import resolve
from zellige_ray.models.specs import ModelSpec, get_spec
from zellige_ray.monitor.sinks import check_sinks
from zellige_ray.placement import get_policy, load_hardware
from zellige_ray.training import checkpoint_files
from zellige_ray.training.blockwise import MISSING
from zellige_ray.urls import check_url, is_url


def check_urls(config: RunConfig) -> None:
    """Raises ConfigError for a URL whose driver is not installed."""
    named = {
        "resume": config.resume, "checkpoint.to": config.checkpoint.to, "model.init_from": config.model.init_from
    }  # fmt: skip
    for knob, place in named.items():
        if place is not None and is_url(place):
            check_url(place, knob)


def look_up(config: RunConfig) -> tuple[ModelSpec, tuple[Path, Path] | None]:
    """The model's spec; run folder and checkpoint of `resume`, None without it or where it is still behind a URL.

    Behind `check_urls`: a model's URL is fetched. Raises ModelError, PlanError, ConfigError or CheckpointError for a
    name that means nothing here.
    """
    spec = get_spec(resolve(config.model).name)
    get_policy(config.placement.policy)
    check_sinks(config.sinks)
    if config.placement.hardware is not None:
        load_hardware(config.placement.hardware)
    alone = not os.environ.get("RAY_ADDRESS")  # else workers run elsewhere, where other things are installed
    if config.engine.kernel == "flash" and alone and importlib.util.find_spec("flash_attn") is None:
        raise ConfigError(
            "engine.kernel is flash, and flash-attn is not installed here: pip install 'zellige-ray[gpu]', or set auto"
        )
    if config.optimizer.name == "adamw8bit" and alone and importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(MISSING)
    if config.resume is None or is_url(config.resume):
        return spec, None
    return spec, checkpoint_files.find(config.resume)
