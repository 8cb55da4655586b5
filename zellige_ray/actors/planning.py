"""Planning inside a run: from samples to a validated plan for the present epoch, each made once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zellige_ray.actors.calibration import Scale
from zellige_ray.actors.memory_guard import MemoryGuard
from zellige_ray.actors.messages import Epoch
from zellige_ray.actors.speeds import Speeds
from zellige_ray.data.index import SampleMeta
from zellige_ray.models.specs import ModelSpec
from zellige_ray.placement import Cluster, CostModel, HardwareProfile, ModelPreset, Plan, make_plan
from zellige_ray.placement import Sequence as Lengths
from zellige_ray.placement.memory import MemoryModel

KEPT_PLANS = 8


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, what it took to make, the relative speeds and the scale of curves it counts on. Units: seconds."""

    plan: Plan
    seconds: float
    speeds: tuple[float, ...]
    scale: Scale


def lengths(samples: Sequence[SampleMeta], spec: ModelSpec) -> list[Lengths]:
    """Samples as plans see them."""
    return [Lengths(s.id, spec.tokens(s.latent_shape), s.text_tokens, s.weight) for s in samples]


class Planner:
    """Makes plans for the workers of an epoch, at their speeds."""

    def __init__(
        self,
        spec: ModelSpec,
        model: ModelPreset,
        hardware: HardwareProfile,
        speeds: Speeds,
        policy: str,
        guard: MemoryGuard,
        memory: MemoryModel | None = None,
    ) -> None:
        """memory: as it was weighed; None: by formula."""
        self.spec, self.hardware, self.policy = spec, hardware, policy
        self.cost = CostModel(hardware, model, measured_memory=memory)
        self.guard = guard
        self.speeds = speeds
        self.scale = Scale()
        self._made: dict[tuple[int, tuple[int, ...], str, tuple[str, ...]], Planned] = {}

    def recalibrate(self, hardware: HardwareProfile, scale: Scale) -> None:
        """Counts with other curves from the next plan on; what was made ahead stays."""
        self.hardware, self.scale = hardware, scale
        self.cost = replace(self.cost, hardware=hardware)

    def cluster(self, epoch: Epoch) -> Cluster:
        """The ranks of an epoch as the planner sees them."""
        return Cluster(
            node_of_rank=epoch.node_of_rank(),
            memory_bytes=self.guard.limits(epoch),
            speed=tuple(self.speeds.of(w) for w in epoch.workers),
        )

    def plan(self, samples: Sequence[SampleMeta], epoch: Epoch, policy: str | None = None) -> Planned:
        """The plan of a batch, from memory when it was made ahead; speeds that changed since count from the next on.

        Raises PlanError when the batch fits nowhere.
        """
        key = (epoch.number, self.guard.limits(epoch), policy or self.policy, tuple(s.id for s in samples))
        if key not in self._made:
            start, cluster = time.perf_counter(), self.cluster(epoch)
            plan = make_plan(
                lengths(samples, self.spec),
                cluster,
                self.cost,
                policy=key[2],
                epoch=epoch.number,
            )
            made = Planned(plan, time.perf_counter() - start, cluster.speed, self.scale)
            self._made = dict([*self._made.items(), (key, made)][-KEPT_PLANS:])
        return self._made[key]

    def starve(self, epoch: Epoch, plan: Plan, workers: Mapping[str, str]) -> str:
        """Workers ran out of memory on a plan: the next ones give them less. Says what weighed most."""
        return self.guard.tighten(epoch, plan, self.cost, workers)
