"""The training state of a rank: parameters, AdamW, learning rate, EMA and the step counter, applied once per step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import OptimizerConfig
from zellige_ray.training.reduction import GradientReducer

FINAL_LR = 0.1  # of the full learning rate, at the end of a cosine schedule


class TrainState:
    """Replicated state: after equal gradients it is equal on every rank."""

    def __init__(self, module: nn.Module, config: OptimizerConfig, total_steps: int) -> None:
        """total_steps: the run's last step, where the schedule ends."""
        self.module = module
        self.config = config
        self.total_steps = total_steps
        self.step = 0
        self._named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        parameters = [p for _, p in self._named]
        self.gradients = GradientReducer(parameters)
        self.optimizer = torch.optim.AdamW(
            parameters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, foreach=True
        )
        self.ema: dict[str, Tensor] = {n: p.detach().clone() for n, p in self._named} if config.ema_decay > 0 else {}

    def lr_at(self, step: int) -> float:
        """Learning rate of a step (counted from 1): linear warm-up, then the schedule."""
        warmup = self.config.warmup_steps
        if step < warmup:
            return self.config.lr * step / warmup
        if self.config.schedule == "constant":
            return self.config.lr
        done = min(1.0, (step - warmup) / max(1, self.total_steps - warmup))
        return self.config.lr * (FINAL_LR + (1 - FINAL_LR) * (1 + math.cos(math.pi * done)) / 2)

    def apply(self, step: int, update: bool = True) -> None:
        """Applies the reduced gradients as step `step`; does nothing when that step was applied before.

        update: False counts the step and leaves every weight as it is (a non-finite gradient). Raises ValueError when a
        step was missed.
        """
        if step <= self.step:
            return
        if step != self.step + 1:
            raise ValueError(f"step {step} can't be applied: this rank is at step {self.step}")
        if update:
            norm, limit = self.gradients.norm(), self.config.clip_norm
            if limit is not None and norm > limit:
                self.gradients.scale(limit / norm)
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr_at(step)
            self.optimizer.step()
            self._update_ema(step)
        self.step = step

    @torch.no_grad()
    def _update_ema(self, step: int) -> None:
        if not self.ema:
            return
        decay = min(self.config.ema_decay, (1 + step) / (10 + step))  # young averages follow fast
        averages = [self.ema[n] for n, _ in self._named]
        torch._foreach_lerp_(averages, [p.detach() for _, p in self._named], 1 - decay)

    def swap_ema(self) -> None:
        """Exchanges parameters and EMA in place; call it again to swap back. Nothing happens without an EMA."""
        with torch.no_grad():
            for name, p in self._named if self.ema else []:
                kept = p.detach().clone()
                p.copy_(self.ema[name])
                self.ema[name].copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and counters, with the optimizer's state by parameter name."""
        moments = {
            name: {k: v for k, v in self.optimizer.state[p].items() if isinstance(v, Tensor)}
            for name, p in self._named
            if p in self.optimizer.state
        }
        return {"model": self.module.state_dict(), "optimizer": moments, "ema": dict(self.ema), "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a `state_dict` of the same architecture; raises RuntimeError where names or shapes differ."""
        self.module.load_state_dict(state["model"])
        for name, p in self._named:
            moments = state["optimizer"].get(name)
            if moments is not None:
                self.optimizer.state[p] = {k: v.clone() for k, v in moments.items()}
        for name, average in self.ema.items():
            average.copy_(state["ema"].get(name, state["model"][name]))
        self.step = int(state["step"])

    def tensors(self) -> list[Tensor]:
        """Every tensor that a newcomer must receive, in an order that is the same on every rank."""
        self._materialise()
        out = [p.data for _, p in self._named] + [b.data for b in self.module.buffers()]
        for _, p in self._named:
            out += [self.optimizer.state[p][k] for k in ("exp_avg", "exp_avg_sq", "step")]
        return out + [self.ema[n] for n, _ in self._named if self.ema]

    def _materialise(self) -> None:
        """Gives AdamW its moments before the first step, as it would itself."""
        for _, p in self._named:
            if p not in self.optimizer.state:
                self.optimizer.state[p] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
                }
