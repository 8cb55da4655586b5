"""QwenImage: diffusers' QwenImageTransformer2DModel; text first, rotary positions from the middle of each sequence's
own grid.

The override of `pos_embed.forward` also removes the model's batch rule, which gives all sequences the first one's
positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models.bound import Bound
from zellige_ray.models.family import Family, require, rope_axes
from zellige_ray.models.stream import Stream


class QwenAdapter(Family):
    """Captions follow the picture's positions: the first caption token is at max(rows // 2, columns // 2)."""

    name = "qwen"

    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        from diffusers import QwenImageTransformer2DModel

        require(config, mlp_ratio=4.0)
        make: Any = QwenImageTransformer2DModel
        module: nn.Module = make(
            patch_size=self.spec.patch[1],
            in_channels=self.spec.patch_values,
            out_channels=self.spec.latent_channels,
            num_layers=config.layers,
            attention_head_dim=config.head_dim,
            num_attention_heads=config.heads,
            joint_attention_dim=text_dim,
            axes_dims_rope=rope_axes(config.head_dim),
        )
        return module

    def blocks(self, module: Any) -> list[nn.Module]:
        return list(module.transformer_blocks)

    def hook(self, module: Any, bound: Bound) -> None:
        if module.zero_cond_t or not module.pos_embed.scale_rope or hasattr(module.pos_embed, "layer_num"):
            raise ModelError(
                "of QwenImage, only the plain text-to-image model is supported, not its edit and layer variants"
            )
        bound.keep_timesteps(module.time_text_embed)
        bound.rows_from(module.time_text_embed)
        module.pos_embed.forward = lambda *_args, **_kwargs: _rotary(module.pos_embed, bound.stream)
        for i, block in enumerate(module.transformer_blocks):
            bound.catch_joint_attention(block.attn, f"qwen.blocks.{i}.attn")

    def run(self, module: Any, stream: Stream) -> Tensor:
        tokens = stream.tokens_TCphw
        out: Tensor = module(
            hidden_states=tokens.flatten(1).unsqueeze(0),
            encoder_hidden_states=stream.captions.text_SD.unsqueeze(0),
            encoder_hidden_states_mask=None,
            timestep=stream.timestep_R,
            img_shapes=[(1, 1, tokens.shape[0])],
            return_dict=False,
        )[0]
        return out.view_as(tokens)


def _rotary(embed: Any, stream: Stream) -> tuple[Tensor, Tensor]:
    """Complex rotations [T, H / 2] of visual tokens, [S, H / 2] of caption tokens."""
    device = stream.positions_T3.device
    halves = [x // 2 for x in embed.axes_dim]
    positive, negative = (torch.split(t.to(device), halves, dim=1) for t in (embed.pos_freqs, embed.neg_freqs))
    grids = [(h, w) for n, (_, h, w) in zip(stream.visual_lengths, stream.grids, strict=True) for _ in range(n)]
    missing = stream.tokens_TCphw.shape[0] - len(grids)
    grid_T2 = torch.tensor([*grids, *[(0, 0)] * missing], dtype=torch.int64, device=device).reshape(-1, 2)
    frame_T, row_T, column_T = stream.positions_T3.unbind(1)
    parts = [positive[0].index_select(0, frame_T)]
    for axis, place_T in ((1, row_T), (2, column_T)):  # from the middle: the upper half is negative
        size_T = grid_T2[:, axis - 1]
        centred_T = place_T - (size_T - size_T // 2)
        table = torch.cat((negative[axis], positive[axis]))
        parts.append(table.index_select(0, centred_T + negative[axis].shape[0]))
    spans = stream.packed.text_spans or ()
    starts = [max(h // 2, w // 2) for (a, b), (_, h, w) in zip(spans, stream.grids, strict=True) for _ in range(b - a)]
    joint = stream.captions
    start_S = torch.tensor([*starts, *[0] * (joint.places_S.shape[0] - len(starts))], dtype=torch.int64, device=device)
    text = torch.cat(positive, dim=1).index_select(0, start_S + joint.places_S)
    return torch.cat(parts, dim=1), text


adapter = QwenAdapter()
