"""A profile of this machine, measured by workers in plain processes, without Ray."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from zellige_ray.actors.prediction_trials import run_trials, whole_trial
from zellige_ray.actors.rank_processes import RankProcesses
from zellige_ray.actors.rates import (
    curve_speeds,
    max_tokens,
    measured_hardware,
    profile_key,
    profile_path,
    wild_workers,
)
from zellige_ray.config import RunConfig
from zellige_ray.data.cache import SETTINGS, LatentCache
from zellige_ray.data.random_cache import write_random_cache
from zellige_ray.errors import ConfigError
from zellige_ray.models.specs import ModelSpec, get_spec
from zellige_ray.placement import CostModel, HardwareProfile, ModelPreset
from zellige_ray.placement.forecast import forecast
from zellige_ray.placement.local_profile import LocalProfile
from zellige_ray.placement.profile_file import Profile, write_profile
from zellige_ray.placement.step_curves import StepCurves
from zellige_ray.training.profile_scope import Probe, Scope

MAX_RANKS = 8
SMALL_STEPS = 9


def profile_here(
    config: RunConfig, out: str | None, budget_s: float, say: Callable[[str], None] = lambda text: None
) -> LocalProfile:
    """Measures the model of a config on workers of this machine, and writes the file.

    out: default where runs look for it. Raises ConfigError, PoolError; an interrupted profile leaves no file.
    """
    size = config.workers.count if isinstance(config.workers.count, int) else min(MAX_RANKS, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="zellige-profile-") as scratch:
        folder, text_dim = _latents(config, Path(scratch), size)
        with RankProcesses(size, config, str(folder), pinned=False) as ranks:
            found = profile_ranks(ranks, config, text_dim, budget_s, say)
    path = Path(out) if out is not None else profile_path(config, found.profile.key)
    write_profile(path, found.profile)
    return replace(found, path=path)


def _latents(config: RunConfig, scratch: Path, size: int) -> tuple[Path, int]:
    """The run's latent cache, or where there is none yet a random one with captions as wide, of so many samples."""
    folder = Path(config.data.cache)
    if (folder / SETTINGS).is_file():
        return folder, LatentCache(folder).text_dim
    if config.data.text.name != "ngram":
        raise ConfigError(
            f"captions of data.text.name {config.data.text.name} are as wide as their encoder says, and {folder} holds "
            "none yet; run `zellige encode` first"
        )
    cache = write_random_cache(scratch, get_spec(config.model.name), [((1, 8, 8), 8)] * size, config.data.text.dim)
    return cache.folder, cache.text_dim


def profile_ranks(
    ranks: RankProcesses,
    config: RunConfig,
    text_dim: int,
    budget_s: float,
    say: Callable[[str], None],
    processor_time: bool = False,
) -> LocalProfile:
    """Measures all ranks at once; their model is not the same afterwards, because some steps are real.

    say: told what happens. processor_time: seconds are those of processors, from here on, as ranks that share some are
    compared by. Raises PoolError and ConfigError.
    """
    say(f"looking at {ranks.epoch.size} workers")
    size = ranks.epoch.size
    if processor_time:
        ranks.call("count_processor_time", [()] * size)
    probes: list[Probe] = [t.value.value for t in ranks.call("probe", [(0,)] * size)]
    say(f"measuring for about {budget_s + 3:.0f} s")
    scope = Scope(max_tokens(config), ranks.epoch.node_of_rank(), budget_s)
    curves: list[StepCurves] = [t.value.value for t in ranks.call("measure", [(0, scope)] * size)]
    speeds = curve_speeds(curves)
    spec = get_spec(config.model.name)
    preset = spec.preset(config.model, config.engine.dtype_bytes)
    hardware = measured_hardware(curves, speeds, preset, ranks.epoch)
    assert hardware.curves is not None
    say("running some steps")
    here = replace(hardware, speed=speeds, state=config.state.layout)
    around_s = _around_s(ranks, here, preset, spec, processor_time)
    hardware = replace(hardware, curves=replace(hardware.curves, around_s=around_s))
    key = profile_key(config, text_dim, ranks.epoch, probes)
    wild = wild_workers(dict(zip(ranks.epoch.workers, probes, strict=True)))
    return LocalProfile(Profile(key, hardware), speeds, tuple(wild))


def _around_s(
    ranks: RankProcesses, hardware: HardwareProfile, preset: ModelPreset, spec: ModelSpec, processor_time: bool
) -> float:
    """What steps with the smallest samples, one on each rank, take beyond their forecast."""
    known = LatentCache(ranks.cache_folder).index().samples
    samples = sorted(known, key=lambda s: (spec.tokens(s.latent_shape), s.id))[: ranks.epoch.size]
    trial = whole_trial(samples, spec, ranks.epoch.size, preset)
    took = run_trials(ranks, [trial], SMALL_STEPS, lambda text: None)[0]
    told = forecast(trial.plan, hardware.cluster(), CostModel(hardware, preset))
    more_s = took.cpu_s - max(r.busy_s for r in told.ranks) if processor_time else took.step_s - told.step_s
    return max(0.0, more_s)
