"""Rates: what plans count with, from a named profile, from an earlier driver or run, or measured on the workers."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import zellige_ray
from zellige_ray.actors.crew import Crew
from zellige_ray.actors.messages import Epoch
from zellige_ray.actors.speeds import EVEN, Speeds
from zellige_ray.config import RunConfig
from zellige_ray.errors import ConfigError
from zellige_ray.files import user_cache
from zellige_ray.placement import HardwareProfile, ModelPreset, load_hardware
from zellige_ray.placement.planning_costs import attention_rate, linear_rate
from zellige_ray.placement.profile_file import Profile, ProfileKey, matching_profile, write_profile
from zellige_ray.placement.step_curves import StepCurves, WireWork, mean_step_curves
from zellige_ray.training.profile_scope import REFERENCE_TEXT, REFERENCE_TOKENS, Probe, Scope

ALONE_BYTES_PER_S = 1e12  # a world of one has no wire; the cost model still wants a rate
LARGE_BYTES, SMALL_BYTES = float(8 << 20), 1024.0
SPEED_TOKENS = (256, 1024)  # what speeds are compared by
MAX_TOKENS = 4096  # of a rank, beyond which curves go on as lines
WILD = 1.5  # a worker this many times slower or faster than its peers is named
DRIFTED = 1.3  # as is a device that is no longer what its profile says

Say = Callable[[Literal["info", "warning"], str], None]


@dataclass(frozen=True, slots=True)
class Rates:
    """hardware: with curves where they were measured. speeds: of the workers. source: where they are from.

    key, path: of the profile file that this run may write; None where it may not.
    """

    hardware: HardwareProfile
    speeds: Speeds
    source: str
    key: ProfileKey | None = None
    path: Path | None = None

    def keep(self, hardware: HardwareProfile) -> None:
        """Leaves what is known by now to the next run; a cache that can't be written is left alone."""
        if self.key is not None and self.path is not None:
            with contextlib.suppress(ConfigError):
                write_profile(self.path, Profile(self.key, hardware))


def find_rates(
    config: RunConfig, model: ModelPreset, text_dim: int, known: HardwareProfile | None, crew: Crew, say: Say
) -> Rates:
    """The rates and the first speeds. A named preset's speeds stay, so that plans can be repeated.

    known: what an earlier driver of this run used. Raises ConfigError, naming the field, for a profile file that was
    measured on something else.
    """
    named = config.placement.hardware
    if named is not None:
        hardware = load_hardware(named)
        of = dict(zip(crew.epoch.workers, hardware.speed or (), strict=False))
        return Rates(hardware, Speeds(of, frozen=True), f"{hardware.name} preset")
    if known is not None:
        return Rates(known, Speeds({}), "earlier driver")
    replies = crew.all("probe", lambda epoch: {w: (epoch.number,) for w in epoch.workers})
    probes: dict[str, Probe] = {w: replies[w].value for w in crew.epoch.workers}
    speeds = dict(zip(probes, relative_speeds([p.reference_s for p in probes.values()]), strict=True))
    for text in wild_workers(probes):
        say("warning", text)
    key = profile_key(config, text_dim, crew.epoch, list(probes.values()))
    path = profile_path(config, key)
    asked = config.placement.profile is not None
    profile = _kept(path, key, asked, say)
    if profile is not None:
        drift = drifted(profile.hardware, list(probes.values()))
        if drift:
            say("warning", drift)
        hardware = _for_epoch(profile.hardware, crew.epoch)
        source = f"profile {path}"
        return Rates(hardware, Speeds(speeds), source) if asked else Rates(hardware, Speeds(speeds), source, key, path)

    rates = measure_rates(config, model, crew)
    if set(crew.epoch.workers) != set(probes):  # somebody died meanwhile: this is not what the key says
        return rates
    rates = replace(rates, key=key, path=path)
    rates.keep(rates.hardware)
    return rates


def measure_rates(config: RunConfig, model: ModelPreset, crew: Crew) -> Rates:
    """The rates as workers measure them now, all at once, and keep nowhere."""

    def scopes(epoch: Epoch) -> dict[str, tuple[int, Scope]]:
        scope = Scope(max_tokens(config), epoch.node_of_rank(), config.placement.profile_s)
        return {w: (epoch.number, scope) for w in epoch.workers}

    measured = crew.all("measure", scopes)
    workers = crew.epoch.workers
    curves: list[StepCurves] = [measured[w].value for w in workers]
    speeds = curve_speeds(curves)
    hardware = measured_hardware(curves, speeds, model, crew.epoch)
    return Rates(hardware, Speeds(dict(zip(workers, speeds, strict=True))), "measured")


def describe(rates: Rates) -> str:
    """The rates, for a person."""
    hardware = rates.hardware
    return (
        f"{rates.source} rates: {hardware.linear_flops / 1e9:.1f} GFLOP/s linear, "
        f"{hardware.attention_flops / 1e9:.1f} attention, "
        f"{hardware.intra_node_bytes_per_s / 1e6:.0f} MB/s to a neighbour"
    )


def profile_key(config: RunConfig, text_dim: int, epoch: Epoch, probes: Sequence[Probe]) -> ProfileKey:
    """What a profile of these workers holds for."""
    model = config.model
    sizes = f"{model.name} {model.layers}x{model.heads}x{model.head_dim} mlp {model.mlp_ratio:g} text {text_dim}"
    return ProfileKey(
        device=" + ".join(sorted({p.device for p in probes})),
        model=f"{sizes} checkpointing {model.checkpointing}",
        dtype=config.engine.dtype,
        kernel=config.engine.kernel,
        threads=config.workers.threads,
        ranks=epoch.size,
        nodes=len(set(epoch.node_of_rank())),
        torch=" + ".join(sorted({p.torch for p in probes})),
        zellige=zellige_ray.__version__,
    )


def profile_path(config: RunConfig, key: ProfileKey) -> Path:
    """The file that a run reads its profile from."""
    if config.placement.profile is not None:
        return Path(config.placement.profile)
    return user_cache() / "profiles" / f"{key.digest}.yaml"


def max_tokens(config: RunConfig) -> int:
    """Tokens of one rank in one round that curves should reach."""
    return min(config.batch.tokens or MAX_TOKENS, MAX_TOKENS)


def relative_speeds(seconds: Sequence[float]) -> tuple[float, ...]:
    """Speed of each rank by its seconds for equal work, 1.0 being the upper median; small differences are noise."""
    middle = statistics.median_low(seconds)
    return tuple(1.0 if abs(middle / s - 1.0) <= EVEN else middle / s for s in seconds)


def curve_speeds(curves: Sequence[StepCurves]) -> tuple[float, ...]:
    """As `relative_speeds`, by whole curves, which say more than a look."""
    return relative_speeds([sum(c.layer_s(n, REFERENCE_TEXT) for n in SPEED_TOKENS) for c in curves])


def wild_workers(probes: Mapping[str, Probe]) -> list[str]:
    """A line for each worker that is far from the others of its device; planned for, not averaged away."""
    out = []
    for device in dict.fromkeys(p.device for p in probes.values()):
        peers = [(w, 1 / p.reference_s) for w, p in probes.items() if p.device == device]
        middle = statistics.median_high([speed for _, speed in peers])
        for worker, speed in peers:
            if not 1 / WILD <= speed / middle <= WILD:
                out.append(
                    f"{worker} computes at {speed / middle:.2f} of the speed of its peers ({device}); "
                    "it is given work by that, see what else runs there"
                )
    return out


def drifted(hardware: HardwareProfile, probes: Sequence[Probe]) -> str:
    """What to say where devices are no longer as fast as their profile; empty where they are."""
    c = hardware.curves
    if c is None:
        return ""
    then = c.layer_s(REFERENCE_TOKENS, REFERENCE_TEXT)
    now = statistics.median_low([p.reference_s for p in probes])
    if 1 / DRIFTED <= now / then <= DRIFTED:
        return ""
    return (
        f"devices are {then / now:.2f} times as fast as when they were profiled; plans follow the steps, "
        "remove the profile to measure again"
    )


def measured_hardware(
    curves: Sequence[StepCurves], speeds: Sequence[float], model: ModelPreset, epoch: Epoch
) -> HardwareProfile:
    """One profile of all ranks: the mean curves of those of speed 1, exchanges as the median rank sees them."""
    chosen = mean_step_curves([c for c, s in zip(curves, speeds, strict=True) if s == 1.0])
    chosen = replace(chosen, node=_middle([c.node for c in curves]), across=_middle([c.across for c in curves]))
    chosen = replace(chosen, wander=min(c.wander for c in curves))  # a slow rank makes the others wait, too
    alone = len(curves) == 1
    near, far = (ALONE_BYTES_PER_S if alone else _bytes_per_s(w) for w in (chosen.node, chosen.across))
    nodes = epoch.node_of_rank()
    return HardwareProfile(
        name="measured",
        nodes=max(nodes) + 1,
        ranks_per_node=-(-epoch.size // (max(nodes) + 1)),
        memory_bytes=min(m.memory_bytes for m in epoch.members),
        linear_flops=linear_rate(chosen, model),
        attention_flops=attention_rate(chosen, model),
        intra_node_bytes_per_s=near,
        inter_node_bytes_per_s=far,
        message_latency_s=0.0 if alone else float(chosen.node.both_ways(SMALL_BYTES)),
        state="replicated",
        curves=chosen,
    )


def _middle(works: Sequence[WireWork]) -> WireWork:
    """The median one of those that timed anything, by its largest exchange."""
    timed = sorted((w for w in works if w.both_ways.y[-1] > 0), key=lambda w: w.both_ways.y[-1])
    return timed[len(timed) // 2] if timed else works[0]


def _bytes_per_s(work: WireWork) -> float:
    return (LARGE_BYTES - SMALL_BYTES) / max(float(work.both_ways(LARGE_BYTES) - work.both_ways(SMALL_BYTES)), 1e-9)


def _kept(path: Path, key: ProfileKey, asked: bool, say: Say) -> Profile | None:
    """The profile of a file, None where there is none; one that nobody asked for is only used when it is sound."""
    if not asked and not path.is_file():
        return None
    try:
        return matching_profile(path, key)
    except ConfigError as fault:
        if asked:
            raise
        say("warning", f"{fault}; measured again")
        return None


def _for_epoch(hardware: HardwareProfile, epoch: Epoch) -> HardwareProfile:
    """With the memory that these workers have."""
    return replace(hardware, memory_bytes=min(m.memory_bytes for m in epoch.members))
