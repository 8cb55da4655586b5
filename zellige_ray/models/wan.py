"""Wan 2.1 and 2.2: diffusers' unmodified WanTransformer3DModel, packed and sharded.

The patch embedding is a Conv3d whose kernel is its stride, so that T patches are T pseudo-frames of one clip: the model's own
embedding and unpatchify work as they are. Positions come from an override of `rope.forward` on the instance, per-sequence
conditioning from a hook that makes the time embedding `Rows`, attention passes the seam. Two rows per sequence (first frame at
timestep 0, TI2V) need nothing more.

Captions have their own length here, without the padding to 512 zero tokens that Wan was pretrained with: pass padded captions
for pretrained weights. An empty caption attends to one zero token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models.adapter import LatentShape, grid_positions, patchify, unpatchify
from zellige_ray.models.bound import Bound, bind_once, remember_checkpointing
from zellige_ray.models.initial import initialise
from zellige_ray.models.rows import Rows
from zellige_ray.models.specs import specs
from zellige_ray.models.stream import Stream

NUM_TIMESTEPS = 1000.0


class WanAdapter:
    """See the module."""

    name = "wan"

    def build(
        self, config: ModelConfig, text_dim: int, seed: int, dtype: torch.dtype, device: torch.device | str
    ) -> nn.Module:
        from diffusers import WanTransformer3DModel

        if config.head_dim % 2 or config.head_dim < 12:
            raise ModelError(f"wan needs an even head_dim of at least 12, got {config.head_dim} (model.head_dim)")
        hidden = config.heads * config.head_dim
        transformer: Any = WanTransformer3DModel
        module: nn.Module = transformer(
            patch_size=specs["wan"].patch,
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            in_channels=specs["wan"].latent_channels,
            out_channels=specs["wan"].latent_channels,
            text_dim=text_dim,
            ffn_dim=round(hidden * config.mlp_ratio),
            num_layers=config.layers,
        )
        initialise(module, seed, zero=("proj_out",))
        remember_checkpointing(module, config.checkpointing)
        return nn.Module.to(module, dtype=dtype, device=device)  # not ModelMixin.to, which warns about float32 parts

    def bind(self, module: nn.Module) -> Bound:
        return bind_once(module, lambda mode: _bind(module, mode))

    def tokens(self, latents_CFHW: Tensor, start: int, stop: int) -> Tensor:
        return patchify(latents_CFHW, specs["wan"].patch, start, stop)

    def untokens(self, tokens_TCphw: Tensor, latent_shape: LatentShape) -> Tensor:
        return unpatchify(tokens_TCphw, latent_shape)

    def positions(self, latent_shape: LatentShape, start: int, stop: int) -> Tensor:
        return grid_positions(specs["wan"].grid(latent_shape), start, stop)


def _bind(module: Any, mode: Any) -> Bound:
    if module.config.image_dim is not None or module.config.added_kv_proj_dim is not None:
        raise ModelError(
            "Wan I2V with an image encoder is not supported: its image context is hard-coded to follow 512 text tokens"
        )
    bound = Bound(module, module.blocks, _run, mode)
    module.rope.forward = lambda hidden: _rotary(module.rope, bound.stream.positions_T3)
    module.condition_embedder.register_forward_hook(lambda _module, _args, out: _as_rows(out, bound.stream))
    for i, block in enumerate(module.blocks):
        bound.catch_self_attention(block.attn1, f"wan.blocks.{i}.attn1")
        bound.catch_cross_attention(block.attn2, f"wan.blocks.{i}.attn2")
    return bound


def _run(module: Any, stream: Stream) -> Tensor:
    clip_1CTphw = stream.tokens_TCphw.transpose(0, 1).flatten(1, 2).unsqueeze(0)
    out_1CTphw: Tensor = module(
        hidden_states=clip_1CTphw,
        timestep=stream.timestep_R * NUM_TIMESTEPS,
        encoder_hidden_states=stream.text_LD.unsqueeze(0),
        return_dict=False,
    )[0]
    T, _, pt = stream.tokens_TCphw.shape[:3]
    C, _, ph, pw = out_1CTphw.shape[1:]
    return out_1CTphw.view(C, T, pt, ph, pw).transpose(0, 1)


def _as_rows(out: tuple[Any, ...], stream: Stream) -> tuple[Any, ...]:
    temb_RD, projection_RX, text, image = out
    return Rows(temb_RD, stream.index), Rows(projection_RX, stream.index), text, image


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
