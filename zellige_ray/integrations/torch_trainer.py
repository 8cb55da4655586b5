"""TorchTrainer integration: a script keeps its trainer and its loop, and every batch is planned sequence by sequence.

    import zellige_ray.integrations.torch_trainer as zr

    def train_fn(config):
        model = zr.prepare_model(WanTransformer3DModel(...), "wan")   # in place of ray.train.torch.prepare_model
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in zr.batches(loader, optimizer):                   # loader: of the global batch
            loss = zr.backward(batch.loss(model(batch)))
            if zr.step(optimizer):
                ray.train.report({"loss": loss})

    TorchTrainer(train_fn, torch_config=zr.ZelligeConfig(), scaling_config=ScalingConfig(num_workers=8, use_gpu=True),
                 run_config=RunConfig(failure_config=FailureConfig(max_failures=-1)))

A lost worker costs the step in flight: the same batch is planned again for the others, and Ray starts another worker in
the empty place, which takes the state over from a living one. Ray allows that with a fixed `num_workers` from 2.57 on
(replica groups); it never grows beyond it, and `max_failures` counts every lost worker. With `in_place=False`, or a
range of workers, Ray starts the whole group again from the script's own checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import ray
import ray.train.torch
import torch
from ray.train.backend import Backend
from ray.train.torch import TorchConfig
from torch import Tensor

from zellige_ray.config import LossConfig
from zellige_ray.integrations import here
from zellige_ray.integrations.batch import Batch
from zellige_ray.integrations.coordinator import LANES, Coordinator
from zellige_ray.integrations.prepared_model import PreparedModel
from zellige_ray.integrations.session import Settings, Stateful

__all__ = ["Batch", "PreparedModel", "ZelligeConfig", "backward", "batches", "prepare_model", "step"]

START_TIMEOUT_S = 120.0
log = logging.getLogger("zellige")


@dataclass
class ZelligeConfig(TorchConfig):  # type: ignore[misc]
    """The `torch_config` of a TorchTrainer. There is no default process group: `torch.distributed` is not initialised.

    seed: of noise, timesteps and the order of samples. loss: weighting and timesteps. hardware: preset, or a YAML file
    as `zellige train` leaves one; default: `cpu` or `h200-8`. policy: who plans. in_place: replace a lost worker alone.
    Units: seconds.
    """

    seed: int = 0
    loss: LossConfig = field(default_factory=LossConfig)
    hardware: str | None = None
    policy: str = "zellige"
    kernel: str = "auto"
    transport: str = "auto"
    timeout_s: float = 600.0  # type: ignore[assignment, unused-ignore]
    comm_timeout_s: float = 60.0
    ping_interval_s: float = 0.5
    ping_timeout_s: float = 10.0
    in_place: bool = True

    @property
    def backend_cls(self) -> type[_Backend]:
        return _InPlace if self.in_place else _Backend

    @property
    def train_func_context(self) -> type[_Context]:
        return _Context

    def settings(self) -> Settings:
        """What workers must know."""
        return Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})


class _Context:
    """Around the training function, in each worker."""

    def __enter__(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.set_device(ray.train.torch.get_device())

    def __exit__(self, kind: object, fault: object, trace: object) -> None:
        here.close(finished=kind is None)


class _Backend(Backend):  # type: ignore[misc]
    """Ray Train's hooks: a coordinator for each worker group, and its handle to every worker."""

    has_replica_groups = False
    coordinator: Any = None

    def on_start(self, worker_group: Any, backend_config: ZelligeConfig) -> None:
        settings, workers = backend_config.settings(), worker_group.get_workers()
        if hasattr(worker_group, "get_replica_groups") or self.coordinator is None:  # the whole group, not one place
            self._begin(worker_group, settings, len(workers))
        known = [self.coordinator.know.remote(w.actor._actor_id.hex(), w.actor) for w in workers]
        ray.get(known, timeout=START_TIMEOUT_S)
        worker_group.execute(here.install, settings, self.coordinator)

    def _begin(self, worker_group: Any, settings: Settings, size: int) -> None:
        if self.coordinator is not None:
            ray.kill(self.coordinator)
        self.coordinator = ray.remote(Coordinator).options(num_cpus=0, max_concurrency=LANES).remote(
            size, settings.timeout_s, settings.ping_interval_s, settings.ping_timeout_s
        )  # fmt: skip
        for text in limits(getattr(worker_group, "_train_run_context", None), self.has_replica_groups):
            log.warning(text)


def limits(context: Any, in_place: bool) -> list[str]:
    """What a lost worker will cost more than its step, and why. context: Ray Train's; only settings are read."""
    out = []
    failure = getattr(getattr(context, "run_config", None), "failure_config", None)
    if getattr(failure, "max_failures", None) == 0:
        out.append("FailureConfig.max_failures is 0: the first lost worker ends the run; -1 goes on without limit")
    if not in_place:
        out.append("in_place is False: Ray starts all workers again when one is lost, from the script's own checkpoint")
    elif not hasattr(Backend, "has_replica_groups"):
        out.append(f"Ray {ray.__version__} can't replace one worker (2.57 can): it starts all again when one is lost")
    elif getattr(getattr(context, "scaling_config", None), "elasticity_enabled", False):
        out.append("num_workers is a range: when Ray changes it, it starts all workers again, from a checkpoint")
    return out


class _InPlace(_Backend):
    """Ray replaces the lost worker and leaves the others running."""

    has_replica_groups = True


def prepare_model(module: torch.nn.Module, name: str, heads: int | None = None) -> PreparedModel:
    """The module on this worker's device, ready for batches; it stays at `.module`, with its class and its keys.

    name: a key of `zellige_ray.models.specs.specs`, such as `wan` or `flux`. heads: where they can't be read off the
    module. Raises ModelError for a model that is unknown, or that can't be cut where the policy would; ConfigError
    outside of a training function.
    """
    return here.current().prepare_model(module, name, heads)


def batches(loader: Any, optimizer: Stateful, *states: Stateful) -> Iterator[Batch]:
    """This worker's shares of the loader's global batches, one pass; a dropped step's batch comes again.

    loader: a DataLoader over single samples (`latents` [C, F, H, W], `text` [L, D], and `pooled` [P] where the model
    takes one vector per caption), not split over ranks; its `batch_size` is the global one. A `shape(i)` of its data
    set saves reading what another rank is given.
    optimizer, states: what a newcomer takes over besides the model, such as a schedule (`state_dict`).
    """
    return here.current().batches(loader, optimizer, *states)


def backward(loss: Tensor) -> float:
    """Backward, and gradients summed over all workers; the loss of the global batch, equal on all of them.

    NaN before the last round of a step and for a step that is dropped. Clip behind it: the gradients are the true ones.
    """
    return here.current().backward(loss)


def step(optimizer: Any) -> bool:
    """Applies the optimizer if the step counts, on every worker or on none; no `zero_grad` is needed.

    True when it counts and every place is filled: the moment for `ray.train.report`, which waits for all places.
    """
    return here.current().step(optimizer)
