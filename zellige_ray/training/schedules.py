"""Schedules: the learning rate of every step, from the warm-up to the last one. A new one is a line in the dict."""

from __future__ import annotations

import math
from collections.abc import Callable

from zellige_ray.config import OptimizerConfig

FINAL_LR = 0.1  # of the full rate, where `optimizer.final_lr` is null
STABLE = 0.8  # of the way behind the warm-up at the full rate, before `stable` falls

# share of the way behind the warm-up, in [0, 1] -> share of what lies between the final and the full rate
schedules: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
    "stable": lambda done: min(1.0, (1 - done) / (1 - STABLE)),
}


def lr_at(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Learning rate of a step (counted from 1): linear warm-up, then the schedule; past the last step it stays."""
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    done = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
    final = FINAL_LR if config.final_lr is None else config.final_lr
    return config.lr * (final + (1 - final) * schedules[config.schedule](done))
