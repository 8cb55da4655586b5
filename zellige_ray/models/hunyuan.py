"""HunyuanVideo: diffusers' HunyuanVideoTransformer3DModel (text to video); visual tokens first, refined captions.

The refiner attends within a whole caption and takes its mean, so it runs once per piece on the whole caption, of which
the piece then keeps the tokens that it owns: partial gradients of several ranks add up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import NUM_TIMESTEPS, Family, as_clip, from_clip, require, rope_axes
from zellige_ray.models.stream import Stream, per_row


class HunyuanAdapter(Family):
    """`layers` double blocks and as many single ones, one refiner block."""

    name = "hunyuan"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import HunyuanVideoTransformer3DModel

        require(config)
        make: Any = HunyuanVideoTransformer3DModel
        module: nn.Module = make(
            in_channels=self.spec.latent_channels,
            out_channels=self.spec.latent_channels,
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            num_layers=config.layers,
            num_single_layers=config.layers,
            num_refiner_layers=1,
            mlp_ratio=config.mlp_ratio,
            patch_size=self.spec.patch[1],
            patch_size_t=self.spec.patch[0],
            guidance_embeds=False,
            text_embed_dim=text_dim,
            pooled_projection_dim=text_dim,
            rope_axes_dim=rope_axes(config.head_dim),
        )
        return module

    def blocks(self, module: Any) -> list[nn.Module]:
        return [*module.transformer_blocks, *module.single_transformer_blocks]

    def hook(self, module: Any, bound: Bound) -> None:
        if module.config.image_condition_type is not None:
            raise ModelError(
                "of HunyuanVideo, only text to video is supported: "
                "its image variants slice tokens by frame inside their blocks"
            )
        bound.rows_from(module.time_text_embed)
        refine = module.context_embedder.forward
        module.context_embedder.forward = lambda *_args, **_kwargs: _refined(refine, bound.stream)
        module.rope.forward = lambda _hidden: _rotary(module.rope, bound.stream.positions_T3)
        for i, block in enumerate(self.blocks(module)):
            attention: Any = block.attn
            bound.catch_joint_attention(attention, f"hunyuan.blocks.{i}.attn", mask="ignore")

    def run(self, module: Any, stream: Stream) -> Tensor:
        tokens, text = stream.tokens_TCphw, stream.captions.text_SD
        rows = stream.timestep_R.shape[0]
        guidance_R = torch.full_like(stream.timestep_R, NUM_TIMESTEPS) if module.config.guidance_embeds else None
        out: Tensor = module(
            hidden_states=as_clip(tokens),
            timestep=stream.timestep_R * NUM_TIMESTEPS,
            encoder_hidden_states=text.unsqueeze(0),
            encoder_attention_mask=torch.ones(1, text.shape[0], dtype=torch.int64, device=text.device),
            pooled_projections=per_row(stream.packed.pooled_RP, text, module.config.pooled_projection_dim, rows),
            guidance=guidance_R,
            return_dict=False,
        )[0]
        return from_clip(out, tokens)


def _refined(refine: Any, stream: Stream) -> Tensor:
    """[1, S, D]: owned tokens of the refined captions, zeros for dummies."""
    packed, joint = stream.packed, stream.captions
    captions = torch.split(stream.text_LD, list(stream.text_lengths)) if stream.text_lengths else ()
    dummy_SD = joint.text_SD[joint.num_tokens :]
    scaled_R = stream.timestep_R * NUM_TIMESTEPS
    parts = [
        refine(caption.unsqueeze(0), scaled_R[row : row + 1])[0][start:stop]
        for caption, (start, stop), row in zip(captions, packed.text_spans or (), packed.piece_rows or (), strict=True)
        if stop > start
    ]
    if dummy_SD.shape[0]:
        parts.append(refine(dummy_SD.unsqueeze(0), scaled_R[-1:])[0])
    return torch.cat(parts).unsqueeze(0)


def _rotary(rope: Any, positions_T3: Tensor) -> tuple[Tensor, Tensor]:
    from diffusers.models import embeddings

    table: Any = embeddings.get_1d_rotary_pos_embed
    parts = [
        table(dim, positions_T3[:, axis].to(torch.float32), rope.theta, use_real=True)
        for axis, dim in enumerate(rope.rope_dim)
    ]
    return torch.cat([p[0] for p in parts], dim=1), torch.cat([p[1] for p in parts], dim=1)


adapter = HunyuanAdapter()
