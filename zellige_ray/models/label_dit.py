"""DiT: diffusers' class-conditional DiTTransformer2DModel; no text, a time and label embedder inside every block.

Its own forward ends in a square picture, so the adapter drives the model's blocks and its output layers itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import NUM_TIMESTEPS, Family, as_picture, embed_patches, require, sincos_places
from zellige_ray.models.stream import Stream

SAMPLE_SIDE = 32
NUM_CLASSES = 1000


class LabelDitAdapter(Family):
    """`Packed.labels_R` or the null class; the blocks' random label dropout is off: it would differ per rank."""

    name = "label_dit"
    zero = ("proj_out_2",)

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import DiTTransformer2DModel

        require(config, mlp_ratio=4.0, head_multiple=4)
        make: Any = DiTTransformer2DModel
        module: nn.Module = make(
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            in_channels=self.spec.latent_channels,
            out_channels=self.spec.latent_channels,
            num_layers=config.layers,
            sample_size=SAMPLE_SIDE,
            patch_size=self.spec.patch[1],
            num_embeds_ada_norm=NUM_CLASSES,
        )
        return module

    def blocks(self, module: Any) -> list[nn.Module]:
        return list(module.transformer_blocks)

    def hook(self, module: Any, bound: Bound) -> None:
        embedder = module.pos_embed
        embedder.forward = lambda picture: embed_patches(embedder, picture, sincos_places(embedder, bound.stream))
        for i, block in enumerate(module.transformer_blocks):
            block.norm1.emb.class_embedder.dropout_prob = 0.0
            bound.rows_from(block.norm1.emb)
            bound.catch_self_attention(block.attn1, f"label_dit.blocks.{i}.attn1")

    def run(self, module: Any, stream: Stream) -> Tensor:
        tokens = stream.tokens_TCphw
        timestep_R, labels_R = stream.timestep_R * NUM_TIMESTEPS, _labels(module, stream)
        hidden_1TD = module.pos_embed(as_picture(tokens))
        for block in module.transformer_blocks:
            hidden_1TD = block(hidden_1TD, timestep=timestep_R, class_labels=labels_R)
        rows = module.transformer_blocks[0].norm1.emb(timestep_R, labels_R, hidden_dtype=hidden_1TD.dtype)
        shift, scale = module.proj_out_1(F.silu(rows)).chunk(2, dim=1)
        hidden_1TD = module.norm_out(hidden_1TD) * (1 + scale[:, None]) + shift[:, None]
        T, C, _, ph, pw = tokens.shape
        patches: Tensor = module.proj_out_2(hidden_1TD)[0].reshape(T, ph, pw, C)
        return patches.permute(0, 3, 1, 2).unsqueeze(2)


def _labels(module: Any, stream: Stream) -> Tensor:
    """Class of every row; the null class where none was given, and for dummies."""
    null = module.config.num_embeds_ada_norm
    labels_R = torch.full(stream.timestep_R.shape, null, dtype=torch.int64, device=stream.timestep_R.device)
    given = stream.packed.labels_R
    if given is not None:
        labels_R[: given.shape[0]] = given
    return labels_R


adapter = LabelDitAdapter()
