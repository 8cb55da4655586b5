"""The Python face: what the commands do, as functions on values.

Every argument that a command takes by name or path can be given so here too, or as the value itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from zellige_ray.config import RunConfig, load_config
from zellige_ray.errors import PlanError
from zellige_ray.monitor.events import Event
from zellige_ray.placement import CostModel, HardwareProfile, ModelPreset, Plan, Sequence, load_hardware, load_model
from zellige_ray.placement.batch import read_batch
from zellige_ray.placement.local_profile import LocalProfile
from zellige_ray.placement.planner import make_plan
from zellige_ray.placement.stream import BEST_STATIC, PolicyFigures, compare
from zellige_ray.placement.workloads import draw_batch

Batch = Iterable[Sequence] | str | Path
POLICIES = ("zellige", "even", BEST_STATIC, "pow2", "cp", "dp")


def train(
    config: RunConfig | str | Path,
    overrides: Iterable[str] = (),
    on_event: Callable[[Event], None] = lambda event: None,
) -> dict[str, Any]:
    """Trains until the last step and returns what `summary.json` says.

    config: a RunConfig, or the path of a YAML file, to which `key=value` overrides are applied. on_event: called in the
    calling thread with every event of the run. Raises ConfigError before any worker starts, other faults by name.

    >>> import zellige_ray as zr
    >>> from zellige_ray.configs import configs
    >>> zr.train(configs["mini"], ["stepz=100"])
    Traceback (most recent call last):
    zellige_ray.errors.ConfigError: stepz: unknown key, the nearest known one is steps
    """
    if not isinstance(config, RunConfig):
        config = load_config(config, overrides)
    elif tuple(overrides):
        raise TypeError("overrides go with a path; a RunConfig is complete, use config.model_copy(update=...)")
    from zellige_ray.actors.launch import train as launch

    return launch(config, on_event)


def plan(
    batch: Batch,
    hardware: HardwareProfile | str | Path,
    model: ModelPreset | str | Path,
    policy: str = "zellige",
) -> Plan:
    """The plan of one batch, validated, with its prediction: as `zellige plan`, without GPU, Ray and torch.

    batch: sequences, or the path of a JSON-lines file. hardware, model: values, names of shipped presets, or paths of
    YAML files. Raises PlanError for a batch that can't be placed, ConfigError for a preset that can't be used.

    >>> import zellige_ray as zr
    >>> batch = [zr.Sequence("clip", 75_600), *(zr.Sequence(f"picture-{i}", 4_096) for i in range(40))]
    >>> plan = zr.plan(batch, "h200-8", "wan-1.3b")
    >>> plan.world_size, plan.num_sequences, len(plan.rounds)
    (8, 41, 1)
    >>> [load.tokens > 0 for load in plan.predicted.ranks] == [True] * 8
    True
    >>> whole = zr.plan(batch, "h200-8", "wan-1.3b", policy="dp")
    >>> f"{whole.predicted.step_s / plan.predicted.step_s:.0f} times as long with every sequence whole"
    '6 times as long with every sequence whole'
    """
    hardware, model = _hardware(hardware), _model(model)
    return make_plan(_batch(batch), hardware.cluster(), CostModel(hardware, model), policy)


def simulate(
    workload: str | Iterable[Batch],
    hardware: HardwareProfile | str | Path,
    model: ModelPreset | str | Path,
    policies: Iterable[str] = POLICIES,
    batches: int = 10,
    seed: int = 0,
) -> tuple[PolicyFigures, ...]:
    """Policies compared over the same batches, in the order asked for: as `zellige simulate`.

    workload: the name of a workload, of which `batches` are drawn from `seed` on, or the batches themselves (sequences
    or paths; `batches` and `seed` are not used then). A policy that can't place the stream says why in `failed`.
    Raises PlanError for bad batches and unknown policies, ConfigError for an unknown workload or preset.

    >>> import zellige_ray as zr
    >>> ours, whole, bags = zr.simulate("few", "a800-16", "flux", ["zellige", "dp", "bags:best-static"], batches=2)
    >>> ours.policy, whole.policy, bags.resolved.startswith("bags:g")
    ('zellige', 'dp', True)
    >>> ours.failed, ours.lower_bound_s <= ours.step_s <= bags.step_s
    ('', True)
    """
    hardware, model = _hardware(hardware), _model(model)
    names = tuple(policies)
    if not names:
        raise PlanError("policies is empty, name at least one")
    cluster = hardware.cluster()
    if isinstance(workload, str):
        if batches < 1:
            raise PlanError(f"batches is {batches}, it must be at least 1")
        if seed < 0:
            raise PlanError(f"seed is {seed}, it must be at least 0")
        drawn = [draw_batch(workload, cluster.world_size, s) for s in range(seed, seed + batches)]
    else:
        drawn = [_batch(batch) for batch in workload]
        if not drawn:
            raise PlanError("the workload has 0 batches, at least 1 is needed")
    return tuple(compare(drawn, cluster, CostModel(hardware, model), names))


def profile(
    config: RunConfig | str | Path,
    overrides: Iterable[str] = (),
    out: str | None = None,
    budget_s: float = 12.0,
    say: Callable[[str], None] = lambda text: None,
) -> LocalProfile:
    """Measures the model of a config on workers of this machine and writes a profile: as `zellige profile`.

    out: a file; default where runs look for theirs. say: told what is being done. Raises ConfigError for a bad config,
    a timing that can't be true, a file that can't be written; PoolError when a worker fails.

    >>> import zellige_ray as zr
    >>> from zellige_ray.configs import configs
    >>> zr.profile(configs["mini"], ["model.headz=100"])
    Traceback (most recent call last):
    zellige_ray.errors.ConfigError: model.headz: unknown key, the nearest known one is heads
    """
    if not isinstance(config, RunConfig):
        config = load_config(config, overrides)
    elif tuple(overrides):
        raise TypeError("overrides go with a path; a RunConfig is complete, use config.model_copy(update=...)")
    from zellige_ray.actors.local_profile import profile_here

    return profile_here(config, out, budget_s, say)


def _hardware(value: HardwareProfile | str | Path) -> HardwareProfile:
    return value if isinstance(value, HardwareProfile) else load_hardware(value)


def _model(value: ModelPreset | str | Path) -> ModelPreset:
    return value if isinstance(value, ModelPreset) else load_model(value)


def _batch(value: Batch) -> tuple[Sequence, ...]:
    if isinstance(value, str | Path):
        return read_batch(value)
    batch = tuple(value)
    for i, item in enumerate(batch):
        if not isinstance(item, Sequence) or not isinstance(item.id, str):
            raise PlanError(f"item {i} of the batch is {item!r}, it must be a Sequence whose id is text")
    return batch


__all__ = ["POLICIES", "plan", "profile", "simulate", "train"]
