"""Flux 2: diffusers' Flux2Transformer2DModel; text first, one modulation for all blocks, ids of four axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import Family, require
from zellige_ray.models.stream import Stream


class Flux2Adapter(Family):
    """`layers` double blocks and as many single ones. Ids: (frame, row, column, 0), (0, 0, 0, caption place)."""

    name = "flux2"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import Flux2Transformer2DModel

        require(config, head_multiple=8)
        make: Any = Flux2Transformer2DModel
        module: nn.Module = make(
            in_channels=self.spec.patch_values,
            num_layers=config.layers,
            num_single_layers=config.layers,
            attention_head_dim=config.head_dim,
            num_attention_heads=config.heads,
            joint_attention_dim=text_dim,
            mlp_ratio=config.mlp_ratio,
            axes_dims_rope=(config.head_dim // 4,) * 4,
            guidance_embeds=False,
        )
        return module

    def blocks(self, module: Any) -> list[nn.Module]:
        return [*module.transformer_blocks, *module.single_transformer_blocks]

    def hook(self, module: Any, bound: Bound) -> None:
        bound.rows_from(module.time_guidance_embed)
        for i, block in enumerate(self.blocks(module)):
            attention: Any = block.attn
            bound.catch_joint_attention(attention, f"flux2.blocks.{i}.attn")

    def run(self, module: Any, stream: Stream) -> Tensor:
        tokens, joint = stream.tokens_TCphw, stream.captions
        zero_T1 = torch.zeros_like(stream.positions_T3[:, :1])
        guidance_R = torch.ones_like(stream.timestep_R) if module.config.guidance_embeds else None
        out: Tensor = module(
            hidden_states=tokens.flatten(1).unsqueeze(0),
            encoder_hidden_states=joint.text_SD.unsqueeze(0),
            timestep=stream.timestep_R,
            img_ids=torch.cat((stream.positions_T3, zero_T1), dim=1),
            txt_ids=torch.nn.functional.pad(joint.places_S[:, None], (3, 0)),
            guidance=guidance_R,
            return_dict=False,
        )[0]
        return out[0].view_as(tokens)


adapter = Flux2Adapter()
