"""Wan 2.1 and 2.2: diffusers' unmodified WanTransformer3DModel, packed and sharded.

The patch embedding is a Conv3d whose kernel is its stride, so that T patches are T pseudo-frames of one clip: the
model's own embedding and unpatchify work as they are. Positions come from an override of `rope.forward` on the
instance, per-sequence conditioning from a hook that makes the time embedding `Rows`, attention passes the seam. Two
rows per sequence (first frame at timestep 0, TI2V) need nothing more.

Captions have their own length here, without the padding to 512 zero tokens that Wan was pretrained with: pass padded
captions for pretrained weights. An empty caption attends to one zero token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import NUM_TIMESTEPS, Family, as_clip, from_clip
from zellige_ray.models.stream import Stream


class WanAdapter(Family):
    """See the module."""

    name = "wan"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import WanTransformer3DModel

        if config.head_dim % 2 or config.head_dim < 12:
            raise ModelError(f"wan needs an even head_dim of at least 12, got {config.head_dim} (model.head_dim)")
        make: Any = WanTransformer3DModel
        module: nn.Module = make(
            patch_size=self.spec.patch,
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            in_channels=self.spec.latent_channels,
            out_channels=self.spec.latent_channels,
            text_dim=text_dim,
            ffn_dim=round(config.heads * config.head_dim * config.mlp_ratio),
            num_layers=config.layers,
        )
        return module

    def blocks(self, module: Any) -> list[nn.Module]:
        return list(module.blocks)

    def hook(self, module: Any, bound: Bound) -> None:
        if module.config.image_dim is not None or module.config.added_kv_proj_dim is not None:
            raise ModelError(
                "Wan I2V with an image encoder is not supported: its image context must follow 512 text tokens"
            )
        bound.rows_from(module.condition_embedder)
        module.rope.forward = lambda _hidden: _rotary(module.rope, bound.stream.positions_T3)
        for i, block in enumerate(module.blocks):
            bound.catch_self_attention(block.attn1, f"wan.blocks.{i}.attn1")
            bound.catch_cross_attention(block.attn2, f"wan.blocks.{i}.attn2")

    def run(self, module: Any, stream: Stream) -> Tensor:
        out: Tensor = module(
            hidden_states=as_clip(stream.tokens_TCphw),
            timestep=stream.timestep_R * NUM_TIMESTEPS,
            encoder_hidden_states=stream.text_LD.unsqueeze(0),
            return_dict=False,
        )[0]
        return from_clip(out, stream.tokens_TCphw)


def _rotary(rope: Any, positions_T3: Tensor) -> tuple[Tensor, Tensor]:
    """The model's own tables, looked up per token: [1, T, 1, H] each."""
    if positions_T3.shape[0] and int(positions_T3.max()) >= rope.max_seq_len:
        raise ModelError(
            f"a token at position {int(positions_T3.max())} is outside of Wan's {rope.max_seq_len} rotary positions"
        )
    sizes = [rope.t_dim, rope.h_dim, rope.w_dim]
    places = positions_T3.to(rope.freqs_cos.device).unbind(1)

    def looked_up(table_XH: Tensor) -> Tensor:
        parts = [t.index_select(0, p) for t, p in zip(torch.split(table_XH, sizes, dim=1), places, strict=True)]
        return torch.cat(parts, dim=-1)[None, :, None, :]

    return looked_up(rope.freqs_cos), looked_up(rope.freqs_sin)


adapter = WanAdapter()
