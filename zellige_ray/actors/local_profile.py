"""A profile of this machine, measured by workers in plain processes, without Ray."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zellige_ray.actors.rank_processes import RankProcesses
from zellige_ray.actors.rates import (
    curve_speeds,
    max_tokens,
    measured_hardware,
    profile_key,
    profile_path,
    wild_workers,
)
from zellige_ray.actors.worker_environment import WORKER_ENVIRONMENT
from zellige_ray.config import RunConfig
from zellige_ray.data.cache import SETTINGS, LatentCache
from zellige_ray.data.random_cache import write_random_cache
from zellige_ray.errors import ConfigError
from zellige_ray.models.specs import get_spec
from zellige_ray.placement.profile_file import Profile, write_profile
from zellige_ray.placement.step_curves import StepCurves
from zellige_ray.training.profile_scope import Probe, Scope
from zellige_ray.words import counted

MAX_RANKS = 8
DTYPE_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class LocalProfile:
    """What was measured, the relative speed of each rank, what a person should know, and the file it is in."""

    profile: Profile
    speeds: tuple[float, ...]
    warnings: tuple[str, ...]
    path: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        key, hardware = asdict(self.profile.key), self.profile.hardware.to_dict()
        path = None if self.path is None else str(self.path)
        return {"key": key, "hardware": hardware, "speeds": list(self.speeds), "path": path}

    def describe(self) -> str:
        """The profile, for a person."""
        hw, key = self.profile.hardware, self.profile.key
        lines = [
            f"{key.model} in {key.dtype} on {key.device}",
            f"{counted(key.ranks, 'rank')} of {counted(key.threads, 'thread')}: {hw.linear_flops / 1e9:.1f} GFLOP/s "
            f"token-wise, attention {hw.attention_flops / 1e9:.1f} at its best length",
        ]
        if hw.curves is not None and key.ranks > 1:
            reduce_ms = 1e3 * float(hw.curves.reduce(hw.curves.gradient_bytes))
            lines.append(
                f"exchange {hw.intra_node_bytes_per_s / 1e6:.0f} MB/s and {1e3 * hw.message_latency_s:.2f} ms each, "
                f"{hw.curves.hidden:.0%} hidden behind local work; gradients in {reduce_ms:.0f} ms"
            )
        return "\n".join([*lines, f"written to {self.path}"] if self.path else lines)


def profile_here(
    config: RunConfig, out: str | None, budget_s: float, say: Callable[[str], None] = lambda text: None
) -> LocalProfile:
    """Measures the model of a config on workers of this machine, and writes the file.

    out: default where runs look for it. Raises ConfigError, PoolError; an interrupted profile leaves no file.
    """
    size = config.workers.count if isinstance(config.workers.count, int) else min(MAX_RANKS, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="zellige-profile-") as scratch:
        folder, text_dim = _latents(config, Path(scratch))
        with start_ranks(size, config, str(folder), pinned=False) as ranks:
            found = profile_ranks(ranks, config, text_dim, budget_s, say)
    path = Path(out) if out is not None else profile_path(config, found.profile.key)
    write_profile(path, found.profile)
    return replace(found, path=path)


def _latents(config: RunConfig, scratch: Path) -> tuple[Path, int]:
    """The run's latent cache, or where there is none yet a random one with captions as wide."""
    folder = Path(config.data.cache)
    if (folder / SETTINGS).is_file():
        return folder, LatentCache(folder).text_dim
    if config.data.text.name != "ngram":
        raise ConfigError(
            f"captions of data.text.name {config.data.text.name} are as wide as their encoder says, and {folder} holds "
            "none yet; run `zellige encode` first"
        )
    cache = write_random_cache(scratch, get_spec(config.model.name), [((1, 8, 8), 8)], config.data.text.dim)
    return cache.folder, cache.text_dim


def start_ranks(size: int, config: RunConfig, cache_folder: str, pinned: bool = True) -> RankProcesses:
    """Workers on this machine, as a run would have them."""
    environment = {**WORKER_ENVIRONMENT, "OMP_NUM_THREADS": str(config.workers.threads)}
    return RankProcesses(size, config, cache_folder, environment, pinned)


def profile_ranks(
    ranks: RankProcesses, config: RunConfig, text_dim: int, budget_s: float, say: Callable[[str], None]
) -> LocalProfile:
    """Measures all ranks at once. say: told what happens. Raises PoolError and ConfigError."""
    say(f"looking at {ranks.epoch.size} workers")
    size = ranks.epoch.size
    probes: list[Probe] = [t.value.value for t in ranks.call("probe", [(0,)] * size)]
    say(f"measuring for about {budget_s + 3:.0f} s")
    scope = Scope(max_tokens(config), ranks.epoch.node_of_rank(), budget_s)
    curves: list[StepCurves] = [t.value.value for t in ranks.call("measure", [(0, scope)] * size)]
    speeds = curve_speeds(curves)
    preset = get_spec(config.model.name).preset(config.model, DTYPE_BYTES[config.engine.dtype])
    hardware = measured_hardware(curves, speeds, preset, ranks.epoch)
    key = profile_key(config, text_dim, ranks.epoch, probes)
    wild = wild_workers(dict(zip(ranks.epoch.workers, probes, strict=True)))
    return LocalProfile(Profile(key, hardware), speeds, tuple(wild))
