"""Flux: diffusers' FluxTransformer2DModel; text first in its joint attention, positions are ids per token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.models.family import require, rope_axes
from zellige_ray.models.flux_family import FluxFamily
from zellige_ray.models.stream import Stream, per_row


class FluxAdapter(FluxFamily):
    """Pooled vectors are zeros where the batch has none."""

    name = "flux"
    conditioning = "time_text_embed"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import FluxTransformer2DModel

        require(config, mlp_ratio=4.0)
        make: Any = FluxTransformer2DModel
        module: nn.Module = make(
            **self.sizes(config, text_dim),
            pooled_projection_dim=text_dim,
            axes_dims_rope=rope_axes(config.head_dim),
        )
        return module

    def run(self, module: Any, stream: Stream) -> Tensor:
        tokens, text = stream.tokens_TCphw, stream.captions.text_SD
        rows = stream.timestep_R.shape[0]
        guidance_R = torch.ones_like(stream.timestep_R) if module.config.guidance_embeds else None
        out: Tensor = module(
            hidden_states=tokens.flatten(1).unsqueeze(0),
            encoder_hidden_states=text.unsqueeze(0),
            pooled_projections=per_row(stream.packed.pooled_RP, text, module.config.pooled_projection_dim, rows),
            timestep=stream.timestep_R,
            img_ids=stream.positions_T3,
            txt_ids=torch.zeros(text.shape[0], 3, dtype=torch.int64, device=text.device),
            guidance=guidance_R,
            return_dict=False,
        )[0]
        return out.view_as(tokens)


adapter = FluxAdapter()
