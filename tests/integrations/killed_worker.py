"""A TorchTrainer script in which a worker kills itself once, run by a test: `killed_worker.py FOLDER STEPS kill`.

Every worker appends (step, loss, world size, seconds) to a file of its own process. With `kill` it goes on until a
newcomer has done some steps with the others; without, one worker does that many steps alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, Dataset

import zellige_ray.integrations.torch_trainer as zr
from zellige_ray.config import ModelConfig
from zellige_ray.models.registry import get_adapter

KILL_AT, FULL_STEPS = 4, 5
SHAPES = [(1, 2, 2), (3, 4, 6), (1, 4, 6), (5, 6, 8), (2, 2, 2), (1, 6, 6)]


class Clips(Dataset[Any]):
    """Six samples of different sizes."""

    def __len__(self) -> int:
        return len(SHAPES)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        g = torch.Generator().manual_seed(i)
        latents = torch.randn((16, *SHAPES[i]), generator=g, dtype=torch.float64)
        return latents, torch.randn((2, 6), generator=g, dtype=torch.float64)


def train_fn(config: dict[str, Any]) -> None:
    folder = Path(config["folder"])
    module = get_adapter("dit").build(
        ModelConfig(name="dit", layers=1, heads=2, head_dim=12), 6, 0, torch.float64, "cpu"
    )
    model = zr.prepare_model(module, "dit")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader: Any = DataLoader(Clips(), batch_size=3, shuffle=True, collate_fn=list)
    full = 0
    log = (folder / f"{os.getpid()}.jsonl").open("a")
    while True:
        for batch in zr.batches(loader, optimizer):
            size = batch.engine.comm.size if batch.engine.comm is not None else 1
            if config["kill"] and batch.step == KILL_AT and not _first(folder / "killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.05 if config["kill"] else 0)
            loss = zr.backward(batch.loss(model(batch)))
            reported = zr.step(optimizer)
            row = {"step": batch.step, "loss": loss, "size": size, "reported": reported, "at": time.monotonic()}
            log.write(json.dumps(row) + "\n")
            log.flush()
            if reported and config["kill"]:
                ray.train.report({"loss": loss})
            full = full + 1 if reported and batch.step > KILL_AT + 1 else full
            if (config["kill"] and full >= FULL_STEPS) or batch.step >= config["steps"]:
                return


def _first(marker: Path) -> bool:
    """Whether somebody was killed already; it is rank 1 that dies, once."""
    if ray.train.get_context().get_world_rank() != 1:
        return True
    try:
        marker.open("x").close()
    except FileExistsError:
        return True
    return False


if __name__ == "__main__":
    where, steps, kill = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "kill"
    trainer = TorchTrainer(
        train_fn,
        torch_config=zr.ZelligeConfig(),
        train_loop_config={"folder": where, "steps": steps, "kill": kill},
        scaling_config=ScalingConfig(num_workers=2 if kill else 1),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=-1), storage_path=where),
    )
    result = trainer.fit()
    sys.stdout.write(json.dumps(result.metrics) + "\n")
