"""A run folder with one complete checkpoint of a small model after a few steps with random gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from zellige_ray.config import ModelConfig, OptimizerConfig, RunConfig, parse_config
from zellige_ray.models import get_adapter
from zellige_ray.models.architecture import resolve_run
from zellige_ray.training import checkpoint_files, checkpoint_io
from zellige_ray.training.checkpoint_files import Position
from zellige_ray.training.state import TrainState

TEXT_DIM = 24


def run_config(model: dict[str, Any], **changes: Any) -> RunConfig:
    return parse_config({"data": {"source": "x"}, "batch": {"samples": 2}, "model": model, **changes})


def train(model: ModelConfig, optimizer: OptimizerConfig, steps: int = 3, dtype: torch.dtype = torch.float32) -> Any:
    """The state behind `steps` steps: no weight is what it began as, and the EMA lags behind."""
    torch.set_num_threads(1)
    module = get_adapter(model.name).build(model, TEXT_DIM, 0, dtype, "cpu")
    state = TrainState(module, optimizer, steps)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, steps + 1):
        for p in module.parameters():
            if p.requires_grad:
                p.grad.copy_(torch.randn(p.shape, generator=generator))  # type: ignore[union-attr]
        state.apply(step)
    return state


def write_run(folder: Path, model: dict[str, Any], steps: int = 3, **optimizer: Any) -> TrainState:
    """Trains and saves; the state, as it is in the checkpoint."""
    config = resolve_run(run_config(model, optimizer={"lr": 0.02, "warmup_steps": 0, **optimizer}))
    state: TrainState = train(config.model, config.optimizer, steps)
    partial = checkpoint_files.partial_folder(folder, steps)
    checkpoint_io.save(str(partial), state)
    identity = checkpoint_files.model_identity(config)
    checkpoint_files.seal(partial, Position(steps, {}, identity, TEXT_DIM, "print", config.seed))
    return state
