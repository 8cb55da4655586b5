"""Flux's family: models of double blocks, then single ones, whose joint attention has its text first."""

from __future__ import annotations

from typing import Any

from torch import nn

from zellige_ray.config import ModelConfig
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import NUM_TIMESTEPS, Family


class FluxFamily(Family):
    """`layers` double blocks and as many single ones. conditioning: the submodule that makes rows of timesteps."""

    conditioning: str

    def sizes(self, config: ModelConfig, text_dim: int) -> dict[str, Any]:
        """What diffusers' constructors call the same in all of them."""
        return {
            "in_channels": self.spec.patch_values,
            "num_layers": config.layers,
            "num_single_layers": config.layers,
            "attention_head_dim": config.head_dim,
            "num_attention_heads": config.heads,
            "joint_attention_dim": text_dim,
        }

    def blocks(self, module: Any) -> list[nn.Module]:
        return [*module.transformer_blocks, *module.single_transformer_blocks]

    def hook(self, module: Any, bound: Bound) -> None:
        conditioning = getattr(module, self.conditioning)
        bound.keep_timesteps(conditioning, NUM_TIMESTEPS)
        bound.rows_from(conditioning)
        for i, block in enumerate(self.blocks(module)):
            attention: Any = block.attn
            bound.catch_joint_attention(attention, f"{self.name}.blocks.{i}.attn")
