"""After: the same script, every batch planned sequence by sequence; a lost worker costs one step."""

from __future__ import annotations

import sys

import ray.train
import torch
from clips import TEXT_DIM, Clips
from diffusers import WanTransformer3DModel
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader

import zellige_ray.integrations.torch_trainer as zr

BATCH = 8  # samples of the global batch


def train_fn(config):
    torch.manual_seed(0)
    model = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=24, num_layers=2, ffn_dim=96, text_dim=TEXT_DIM
    )
    model = zr.prepare_model(model, "wan")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Clips(), batch_size=BATCH, shuffle=True, collate_fn=list)
    for _ in range(config["passes"]):
        for batch in zr.batches(loader, optimizer):
            loss = zr.backward(batch.loss(model(batch)))
            if zr.step(optimizer):
                ray.train.report({"loss": loss})


def main(num_workers=2, passes=2):
    trainer = TorchTrainer(
        train_fn,
        torch_config=zr.ZelligeConfig(),
        train_loop_config={"passes": passes},
        scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=-1)),
    )
    return trainer.fit()


if __name__ == "__main__":
    sys.stdout.write(f"{main(*map(int, sys.argv[1:])).metrics}\n")
