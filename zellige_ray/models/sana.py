"""SANA: diffusers' SanaTransformer2DModel; linear attention and a convolution over the picture, so sequences are never
cut.

Both act on a whole picture: they run picture by picture over the packed stream, everything else on all of it at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import NUM_TIMESTEPS, Family, as_picture, from_picture, require
from zellige_ray.models.stream import Stream


class SanaAdapter(Family):
    """`max_degree` is 1: a cut sequence is refused. Cross-attention has the heads of self-attention."""

    name = "sana"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import SanaTransformer2DModel

        require(config)
        make: Any = SanaTransformer2DModel
        module: nn.Module = make(
            in_channels=self.spec.latent_channels,
            out_channels=self.spec.latent_channels,
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            num_layers=config.layers,
            num_cross_attention_heads=config.heads,
            cross_attention_head_dim=config.head_dim,
            cross_attention_dim=config.heads * config.head_dim,
            caption_channels=text_dim,
            mlp_ratio=config.mlp_ratio,
            patch_size=self.spec.patch[1],
        )
        return module

    def blocks(self, module: Any) -> list[nn.Module]:
        return list(module.transformer_blocks)

    def hook(self, module: Any, bound: Bound) -> None:
        bound.rows_from(module.time_embed)
        for i, block in enumerate(module.transformer_blocks):
            block.attn1.forward = _by_picture(block.attn1.forward, bound, _attend_picture)
            block.ff.forward = _by_picture(block.ff.forward, bound, _convolve_picture)
            bound.catch_cross_attention(block.attn2, f"sana.blocks.{i}.attn2")

    def run(self, module: Any, stream: Stream) -> Tensor:
        stream.check_whole("has linear attention and convolutions over the whole picture")
        tokens = stream.tokens_TCphw
        out: Tensor = module(
            hidden_states=as_picture(tokens),
            encoder_hidden_states=stream.text_LD.unsqueeze(0),
            timestep=stream.timestep_R * NUM_TIMESTEPS,
            return_dict=False,
        )[0]
        return from_picture(out, tokens)


def _by_picture(original: Any, bound: Bound, one: Any) -> Any:
    def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _each(original, bound.stream, one, hidden)

    return forward


def _each(original: Any, stream: Stream, one: Any, hidden: Tensor) -> Tensor:
    """`one` on every picture, and on the dummies as a picture of one column; pictures are along the only long axis."""
    axis = 1 if hidden.ndim == 3 else 2
    lengths = [*stream.visual_lengths, hidden.shape[axis] - stream.num_tokens]
    shapes = [*((h, w) for _, h, w in stream.grids), (lengths[-1], 1)]
    parts = [
        one(original, part, shape)
        for part, shape in zip(torch.split(hidden, lengths, dim=axis), shapes, strict=True)
        if part.shape[axis]
    ]
    return torch.cat(parts, dim=axis)


def _attend_picture(original: Any, part_1ND: Tensor, shape: tuple[int, int]) -> Tensor:
    out: Tensor = original(part_1ND)
    return out


def _convolve_picture(original: Any, part_1DN1: Tensor, shape: tuple[int, int]) -> Tensor:
    out: Tensor = original(part_1DN1.reshape(1, part_1DN1.shape[1], *shape))
    return out.flatten(2).unsqueeze(-1)


adapter = SanaAdapter()
