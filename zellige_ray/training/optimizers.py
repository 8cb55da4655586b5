"""Optimizers: what applies a step to this rank's parameters. A new one is a function and a line in the dict.

Their state is `exp_avg`, `exp_avg_sq` and `step` of each parameter, so that layouts, checkpoints and newcomers know it;
those of `blockwise` have another, which moves whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from zellige_ray.config import OptimizerConfig
from zellige_ray.errors import ConfigError
from zellige_ray.training.blockwise import EPS, adamw8bit


class HostAdamW(Optimizer):
    """AdamW whose moments stay in host memory: weights and gradients visit it, one parameter at a time."""

    def __init__(self, parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> None:
        b1, b2 = config.betas
        super().__init__(parameters, {"lr": config.lr, "betas": (b1, b2), "weight_decay": config.weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"step": torch.zeros(()), "exp_avg": host_zeros(p), "exp_avg_sq": host_zeros(p)}
                weight, grad = p.detach().to("cpu", copy=True), p.grad.to("cpu")
                adamw(
                    [weight], [grad], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]],
                    fused=True, amsgrad=False, beta1=b1, beta2=b2, lr=group["lr"],
                    weight_decay=group["weight_decay"], eps=EPS, maximize=False,
                )  # fmt: skip
                p.copy_(weight)


def _adamw(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    if config.offload:
        return HostAdamW(parameters, config)
    kind = {"fused": True} if config.fused else {"foreach": True}
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, eps=EPS, **kind
    )


optimizers: dict[str, Callable[[Sequence[nn.Parameter], OptimizerConfig], Optimizer]] = {
    "adamw": _adamw,
    "adamw8bit": adamw8bit,
}
blockwise = frozenset({"adamw8bit"})  # see `zellige_ray.training.blockwise`


def make_optimizer(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    """The configured optimizer over this rank's parameters."""
    return optimizers[config.name](parameters, config)


def check_device(config: OptimizerConfig, device_type: str) -> None:
    """Raises ConfigError for an option that the device of the workers does not have."""
    if config.offload and device_type == "cpu":
        raise ConfigError(
            "optimizer.offload moves the optimizer's moments from GPUs to host memory, these workers run on CPUs, "
            "where they are already: remove it"
        )


def place_state(values: dict[str, Tensor], parameter: nn.Parameter, config: OptimizerConfig) -> dict[str, Tensor]:
    """Moments and counters of a parameter where its optimizer wants them."""
    counter = parameter.device if config.fused else torch.device("cpu")
    moment = torch.device("cpu") if config.offload else parameter.device
    return {name: value.to(moment if value.ndim else counter) for name, value in values.items()}


def host_zeros(parameter: nn.Parameter) -> Tensor:
    """Room for one moment in host memory, from where a GPU copies fastest."""
    pin = parameter.device.type == "cuda"
    return torch.zeros(parameter.shape, dtype=parameter.dtype, pin_memory=pin)
