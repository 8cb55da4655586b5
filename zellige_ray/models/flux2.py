"""Flux 2: diffusers' Flux2Transformer2DModel; text first, one modulation for all blocks, ids of four axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.models.family import require
from zellige_ray.models.flux_family import FluxFamily
from zellige_ray.models.stream import Stream


class Flux2Adapter(FluxFamily):
    """Ids: (frame, row, column, 0), (0, 0, 0, caption place)."""

    name = "flux2"
    conditioning = "time_guidance_embed"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import Flux2Transformer2DModel

        require(config, head_multiple=8)
        make: Any = Flux2Transformer2DModel
        module: nn.Module = make(
            **self.sizes(config, text_dim),
            mlp_ratio=config.mlp_ratio,
            axes_dims_rope=(config.head_dim // 4,) * 4,
            guidance_embeds=False,
        )
        return module

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
        return out.view_as(tokens)


adapter = Flux2Adapter()
