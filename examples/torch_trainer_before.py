"""Before: a TorchTrainer script as people write it. Every rank takes whole samples, and waits for the longest."""

from __future__ import annotations

import sys

import ray.train
import ray.train.torch
import torch
from clips import TEXT_DIM, Clips
from diffusers import WanTransformer3DModel
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader

BATCH = 8  # samples of the global batch


def train_fn(config):
    torch.manual_seed(0)
    model = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=24, num_layers=2, ffn_dim=96, text_dim=TEXT_DIM
    )
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    world_size = ray.train.get_context().get_world_size()
    loader = DataLoader(Clips(), batch_size=BATCH // world_size, shuffle=True, collate_fn=list)
    loader = ray.train.torch.prepare_data_loader(loader)
    for _ in range(config["passes"]):
        for samples in loader:
            loss = torch.zeros(())
            for sample in samples:
                clean, text = sample["latents"].unsqueeze(0), sample["text"].unsqueeze(0)
                noise, t = torch.randn_like(clean), torch.randn(1).sigmoid()
                pred = model((1 - t) * clean + t * noise, 1000 * t, text, return_dict=False)[0]
                loss = loss + (pred - (noise - clean)).square().mean() / len(samples)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ray.train.report({"loss": loss.item()})


def main(num_workers=2, passes=2):
    trainer = TorchTrainer(
        train_fn,
        train_loop_config={"passes": passes},
        scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=-1)),
    )
    return trainer.fit()


if __name__ == "__main__":
    sys.stdout.write(f"{main(*map(int, sys.argv[1:])).metrics}\n")
