"""PixArt: diffusers' PixArtTransformer2DModel; sine positions stretched to each grid, captions by cross-attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import (
    NUM_TIMESTEPS,
    Family,
    as_picture,
    embed_patches,
    from_picture,
    require,
    sincos_places,
)
from zellige_ray.models.stream import Stream

SAMPLE_SIDE = 64


class PixArtAdapter(Family):
    """Predicts as many channels as it takes (no learned variance)."""

    name = "pixart"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import PixArtTransformer2DModel

        require(config, mlp_ratio=4.0, head_multiple=4)
        make: Any = PixArtTransformer2DModel
        module: nn.Module = make(
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            in_channels=self.spec.latent_channels,
            out_channels=self.spec.latent_channels,
            num_layers=config.layers,
            cross_attention_dim=config.heads * config.head_dim,
            sample_size=SAMPLE_SIDE,
            patch_size=self.spec.patch[1],
            caption_channels=text_dim,
        )
        return module

    def blocks(self, module: Any) -> list[nn.Module]:
        return list(module.transformer_blocks)

    def hook(self, module: Any, bound: Bound) -> None:
        if module.use_additional_conditions:
            raise ModelError("of PixArt, models with resolution and aspect-ratio conditions are not supported")
        if module.out_channels != module.config.in_channels:
            raise ModelError(
                f"this PixArt predicts {module.out_channels} channels for {module.config.in_channels}: "
                "learned variance is not supported"
            )
        bound.rows_from(module.adaln_single)
        embedder = module.pos_embed
        embedder.forward = lambda picture: embed_patches(embedder, picture, sincos_places(embedder, bound.stream))
        for i, block in enumerate(module.transformer_blocks):
            bound.catch_self_attention(block.attn1, f"pixart.blocks.{i}.attn1")
            bound.catch_cross_attention(block.attn2, f"pixart.blocks.{i}.attn2")

    def run(self, module: Any, stream: Stream) -> Tensor:
        tokens = stream.tokens_TCphw
        out: Tensor = module(
            hidden_states=as_picture(tokens),
            encoder_hidden_states=stream.text_LD.unsqueeze(0),
            timestep=stream.timestep_R * NUM_TIMESTEPS,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
            return_dict=False,
        )[0]
        return from_picture(out, tokens)


adapter = PixArtAdapter()
