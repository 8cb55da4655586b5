"""LTX-Video: diffusers' LTXVideoTransformer3DModel; coordinates per token as they are, captions by cross-attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import NUM_TIMESTEPS, Family, require
from zellige_ray.models.stream import Stream


class LtxAdapter(Family):
    """Coordinates are pixels of the video: latent places times the strides of its codec."""

    name = "ltx"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import LTXVideoTransformer3DModel

        require(config, mlp_ratio=4.0)
        make: Any = LTXVideoTransformer3DModel
        module: nn.Module = make(
            in_channels=self.spec.patch_values,
            out_channels=self.spec.patch_values,
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            cross_attention_dim=config.heads * config.head_dim,
            num_layers=config.layers,
            caption_channels=text_dim,
        )
        return module

    def blocks(self, module: Any) -> list[nn.Module]:
        return list(module.transformer_blocks)

    def hook(self, module: Any, bound: Bound) -> None:
        bound.rows_from(module.time_embed)
        for i, block in enumerate(module.transformer_blocks):
            bound.catch_self_attention(block.attn1, f"ltx.blocks.{i}.attn1")
            bound.catch_cross_attention(block.attn2, f"ltx.blocks.{i}.attn2")

    def run(self, module: Any, stream: Stream) -> Tensor:
        tokens = stream.tokens_TCphw
        strides = tokens.new_tensor([self.spec.temporal_stride, self.spec.spatial_stride, self.spec.spatial_stride])
        out: Tensor = module(
            hidden_states=tokens.flatten(1).unsqueeze(0),
            encoder_hidden_states=stream.text_LD.unsqueeze(0),
            timestep=stream.timestep_R * NUM_TIMESTEPS,
            encoder_attention_mask=None,
            video_coords=(stream.positions_T3 * strides).T.unsqueeze(0),
            return_dict=False,
        )[0]
        return out.view_as(tokens)


adapter = LtxAdapter()
