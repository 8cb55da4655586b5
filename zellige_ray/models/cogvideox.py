"""CogVideoX with rotary positions (5B): diffusers' CogVideoXTransformer3DModel; text first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import NUM_TIMESTEPS, Family, require
from zellige_ray.models.stream import Stream


class CogVideoXAdapter(Family):
    """Head dims: a quarter for frames, three eighths each for rows and columns, as in the released models."""

    name = "cogvideox"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import CogVideoXTransformer3DModel

        require(config, mlp_ratio=4.0, head_multiple=16)
        make: Any = CogVideoXTransformer3DModel
        module: nn.Module = make(
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            in_channels=self.spec.latent_channels,
            out_channels=self.spec.latent_channels,
            text_embed_dim=text_dim,
            num_layers=config.layers,
            patch_size=self.spec.patch[1],
            use_rotary_positional_embeddings=True,
        )
        return module

    def blocks(self, module: Any) -> list[nn.Module]:
        return list(module.transformer_blocks)

    def hook(self, module: Any, bound: Bound) -> None:
        if not module.config.use_rotary_positional_embeddings or module.config.use_learned_positional_embeddings:
            raise ModelError(
                "of CogVideoX, only models with rotary positions can be packed: learned ones have a fixed size"
            )
        if module.config.ofs_embed_dim or module.config.patch_size_t:
            raise ModelError("CogVideoX 1.5 (temporal patches, ofs embedding) is not supported")
        bound.rows_from(module.time_embedding)
        for i, block in enumerate(module.transformer_blocks):
            bound.catch_joint_attention(block.attn1, f"cogvideox.blocks.{i}.attn1")

    def run(self, module: Any, stream: Stream) -> Tensor:
        tokens = stream.tokens_TCphw
        frames = tokens.squeeze(2).unsqueeze(0)  # every patch is a frame of its own
        out: Tensor = module(
            hidden_states=frames,
            encoder_hidden_states=stream.captions.text_SD.unsqueeze(0),
            timestep=stream.timestep_R * NUM_TIMESTEPS,
            image_rotary_emb=rotation(stream.positions_T3, module.config.attention_head_dim),
            return_dict=False,
        )[0]
        return out[0].unsqueeze(2)


def rotation(positions_T3: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin [T, H] of each token's place."""
    from diffusers.models import embeddings

    dims = (head_dim // 4, head_dim // 8 * 3, head_dim // 8 * 3)
    table: Any = embeddings.get_1d_rotary_pos_embed
    parts = [table(dim, positions_T3[:, axis].to(torch.float32), use_real=True) for axis, dim in enumerate(dims)]
    return torch.cat([p[0] for p in parts], dim=1), torch.cat([p[1] for p in parts], dim=1)


adapter = CogVideoXAdapter()
