"""Stable Diffusion 3 and 3.5: diffusers' SD3Transformer2DModel; visual tokens first, a position table cropped to each
grid.

Blocks with dual attention (3.5 medium) also attend to visual tokens alone, which a joint plan does not cut: there,
sequences must be whole (`max_degree` 1), and a cut one is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import NUM_TIMESTEPS, Family, as_picture, embed_patches, from_picture, require
from zellige_ray.models.stream import Stream, per_row

TABLE_SIDE = 64


class Sd3Adapter(Family):
    """Built from scratch with QK-norm and without dual attention; the last block is text-free, as in the released
    models.
    """

    name = "sd3"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import SD3Transformer2DModel

        require(config, mlp_ratio=4.0, head_multiple=4)
        make: Any = SD3Transformer2DModel
        module: nn.Module = make(
            sample_size=TABLE_SIDE,
            patch_size=self.spec.patch[1],
            in_channels=self.spec.latent_channels,
            out_channels=self.spec.latent_channels,
            num_layers=config.layers,
            attention_head_dim=config.head_dim,
            num_attention_heads=config.heads,
            joint_attention_dim=text_dim,
            caption_projection_dim=config.heads * config.head_dim,
            pooled_projection_dim=text_dim,
            pos_embed_max_size=TABLE_SIDE,
            qk_norm="rms_norm",
        )
        return module

    def blocks(self, module: Any) -> list[nn.Module]:
        return list(module.transformer_blocks)

    def hook(self, module: Any, bound: Bound) -> None:
        bound.rows_from(module.time_text_embed)
        embedder = module.pos_embed
        embedder.forward = lambda picture: embed_patches(embedder, picture, _places(embedder, bound.stream))
        for i, block in enumerate(module.transformer_blocks):
            bound.catch_joint_attention(block.attn, f"sd3.blocks.{i}.attn")
            if block.attn2 is not None:
                bound.catch_visual_attention(block.attn2, f"sd3.blocks.{i}.attn2")

    def run(self, module: Any, stream: Stream) -> Tensor:
        tokens, text = stream.tokens_TCphw, stream.captions.text_SD
        rows = stream.timestep_R.shape[0]
        out: Tensor = module(
            hidden_states=as_picture(tokens),
            encoder_hidden_states=text.unsqueeze(0),
            pooled_projections=per_row(stream.packed.pooled_RP, text, module.config.pooled_projection_dim, rows),
            timestep=stream.timestep_R * NUM_TIMESTEPS,
            return_dict=False,
        )[0]
        return from_picture(out, tokens)


def _places(embedder: Any, stream: Stream) -> Tensor:
    """Rows of the table, cropped around its middle, one per token; dummies take the first."""
    side = embedder.pos_embed_max_size
    offsets: list[int] = []
    for n, (_, h, w) in zip(stream.visual_lengths, stream.grids, strict=True):
        if max(h, w) > side:
            raise ModelError(
                f"a picture of {h} x {w} tokens is larger than SD3's table of {side} x {side}; lower data.max_pixels"
            )
        offsets += [(side - h) // 2 * side + (side - w) // 2] * n
    missing = stream.tokens_TCphw.shape[0] - len(offsets)
    offset_T = torch.tensor([*offsets, *[0] * missing], dtype=torch.int64, device=stream.positions_T3.device)
    index_T = stream.positions_T3[:, 1] * side + stream.positions_T3[:, 2] + offset_T
    places: Tensor = embedder.pos_embed[0].index_select(0, index_T)
    return places


adapter = Sd3Adapter()
