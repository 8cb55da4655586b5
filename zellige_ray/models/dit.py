"""The reference DiT: adaLN-zero blocks, 3-D rotary positions, QK-norm, cross-attention to text; small enough to read.

It runs plain, one sequence at a time, as well as packed; float64 as it is.

Legend: T tokens, R rows (1 when plain), D width, N heads, H head dim, L caption tokens, X patch values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models.adapter import LatentShape, grid_positions, patchify, unpatchify
from zellige_ray.models.bound import Bound, Checkpointing, bind_once
from zellige_ray.models.making import finish
from zellige_ray.models.rows import Rows, TokenIndex
from zellige_ray.models.specs import specs
from zellige_ray.models.stream import Stream

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # [T, N, H], keys [T or L, N, H]

TIME_FREQUENCIES = 128


def attend_alone(q_TNH: Tensor, k_SNH: Tensor, v_SNH: Tensor) -> Tensor:
    """Attention of one sequence by itself."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_TNH, k_SNH, v_SNH))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


class ReferenceDiT(nn.Module):
    """Velocity of noisy patches, given timestep and caption."""

    def __init__(
        self, layers: int, heads: int, head_dim: int, mlp_ratio: float, patch_values: int, text_dim: int
    ) -> None:
        super().__init__()
        width = heads * head_dim
        self.head_dim = head_dim
        self.patch_in = nn.Linear(patch_values, width)
        self.text_in = nn.Linear(text_dim, width)
        self.time_in = nn.Sequential(nn.Linear(2 * TIME_FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(_Block(heads, head_dim, round(width * mlp_ratio)) for _ in range(layers))
        self.norm_out = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation_out = nn.Linear(width, 2 * width)
        self.patch_out = nn.Linear(width, patch_values)

    def forward(
        self,
        patches_TX: Tensor,
        positions_T3: Tensor,
        timestep_R: Tensor,
        text_LD: Tensor,
        index: TokenIndex | None = None,
        attend: Attend = attend_alone,
        cross: Attend = attend_alone,
    ) -> Tensor:
        """Velocity [T, X]. index: token -> row when packed; plain: one row for all. timestep_R in [0, 1]."""
        time_RD = F.silu(self.time_in(_frequencies(timestep_R, patches_TX.dtype)))
        rotation_THH = rotation(positions_T3, self.head_dim, patches_TX.dtype)
        x_1TD, text_LD = self.patch_in(patches_TX).unsqueeze(0), self.text_in(text_LD)
        for block in self.blocks:
            x_1TD = block(x_1TD, text_LD, time_RD, index, rotation_THH, attend, cross)
        shift, scale = _modulation(self.modulation_out(time_RD), 2, index)
        out: Tensor = self.patch_out((self.norm_out(x_1TD) * (1 + scale) + shift).squeeze(0))
        return out


class _Block(nn.Module):
    def __init__(self, heads: int, head_dim: int, mlp_width: int) -> None:
        super().__init__()
        width = heads * head_dim
        self.heads = heads
        self.modulation = nn.Linear(width, 6 * width)
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.norm_q, self.norm_k = nn.RMSNorm(head_dim, eps=1e-6), nn.RMSNorm(head_dim, eps=1e-6)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.cross_q, self.cross_kv, self.cross_out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.norm3 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp_in, self.mlp_out = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)

    def forward(
        self,
        x_1TD: Tensor,
        text_LD: Tensor,
        time_RD: Tensor,
        index: TokenIndex | None,
        rotation_THH: tuple[Tensor, Tensor],
        attend: Attend,
        cross: Attend,
    ) -> Tensor:
        shift1, scale1, gate1, shift3, scale3, gate3 = _modulation(self.modulation(time_RD), 6, index)
        q, k, v = (
            self.qkv((self.norm1(x_1TD) * (1 + scale1) + shift1).squeeze(0))
            .unflatten(-1, (3, self.heads, -1))
            .unbind(1)
        )
        q, k = rotate(self.norm_q(q), rotation_THH), rotate(self.norm_k(k), rotation_THH)
        x_1TD = x_1TD + self.out(attend(q, k, v).flatten(1)).unsqueeze(0) * gate1
        q = self.cross_q(self.norm2(x_1TD).squeeze(0)).unflatten(-1, (self.heads, -1))
        k, v = self.cross_kv(text_LD).unflatten(-1, (2, self.heads, -1)).unbind(1)
        x_1TD = x_1TD + self.cross_out(cross(q, k, v).flatten(1)).unsqueeze(0)
        hidden = self.mlp_in(self.norm3(x_1TD) * (1 + scale3) + shift3)
        out: Tensor = x_1TD + self.mlp_out(F.gelu(hidden, approximate="tanh")) * gate3
        return out


def _modulation(values_RX: Tensor, parts: int, index: TokenIndex | None) -> tuple[Any, ...]:
    """`parts` values [R, D], one per row: plain ones broadcast, packed ones are gathered where they meet tokens."""
    chunks = values_RX.unsqueeze(1).chunk(parts, dim=-1)
    return chunks if index is None else tuple(Rows(c, {index.num_tokens: index}) for c in chunks)


def _frequencies(timestep_R: Tensor, dtype: torch.dtype) -> Tensor:
    steps = torch.arange(TIME_FREQUENCIES, dtype=dtype, device=timestep_R.device) / TIME_FREQUENCIES
    angle_RX = 1000 * timestep_R.to(dtype)[:, None] * torch.exp(-math.log(10000) * steps)
    return torch.cat((angle_RX.cos(), angle_RX.sin()), dim=-1)


def rotation(positions_T3: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [T, 1, H / 2]: a third of the pairs for each of frame, row, column (the frame takes the rest)."""
    side = head_dim // 6
    angles: list[Tensor] = []
    for axis, pairs in enumerate((head_dim // 2 - 2 * side, side, side)):
        steps = torch.arange(pairs, dtype=torch.float64, device=positions_T3.device) / pairs
        angles.append(positions_T3[:, axis, None] * 10000.0**-steps)
    angle_T1X = torch.cat(angles, dim=-1).unsqueeze(1)
    return angle_T1X.cos().to(dtype), angle_T1X.sin().to(dtype)


def rotate(x_TNH: Tensor, rotation_T1X: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the two halves of each head by the token's angles."""
    cos, sin = rotation_T1X
    left, right = x_TNH.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)


class DitAdapter:
    """The adapter of the reference DiT."""

    name = "dit"

    def make(self, config: ModelConfig, text_dim: int) -> nn.Module:
        if config.head_dim % 2 or config.head_dim < 12:
            raise ModelError(f"dit needs an even head_dim of at least 12, got {config.head_dim} (model.head_dim)")
        spec = specs["dit"]
        patch_values = spec.latent_channels * math.prod(spec.patch)
        return ReferenceDiT(config.layers, config.heads, config.head_dim, config.mlp_ratio, patch_values, text_dim)

    def build(
        self, config: ModelConfig, text_dim: int, seed: int, dtype: torch.dtype, device: torch.device | str
    ) -> nn.Module:
        modulations = [f"blocks.{i}.modulation" for i in range(config.layers)]
        zero = ("patch_out", "modulation_out", *modulations)
        return finish(self.make(config, text_dim), config, seed, dtype, device, zero)

    def bind(self, module: nn.Module, checkpointing: Checkpointing | None = None) -> Bound:
        dit = cast(ReferenceDiT, module)
        return bind_once(module, lambda mode: _bind(dit, mode), checkpointing)

    def tokens(self, latents_CFHW: Tensor, start: int, stop: int) -> Tensor:
        return patchify(latents_CFHW, specs["dit"].patch, start, stop)

    def untokens(self, tokens_TCphw: Tensor, latent_shape: LatentShape) -> Tensor:
        return unpatchify(tokens_TCphw, latent_shape)

    def positions(self, latent_shape: LatentShape, start: int, stop: int) -> Tensor:
        return grid_positions(specs["dit"].grid(latent_shape), start, stop)


def _bind(dit: ReferenceDiT, mode: Checkpointing) -> Bound:
    def run(_module: nn.Module, stream: Stream) -> Tensor:
        return _run(dit, stream, bound.attend)

    bound = Bound(dit, list(dit.blocks), run, mode)
    return bound


def _run(module: nn.Module, stream: Stream, attend: Attend) -> Tensor:
    out_TX: Tensor = module(
        stream.tokens_TCphw.flatten(1),
        stream.positions_T3,
        stream.timestep_R,
        stream.text_LD,
        stream.visual,
        attend,
        stream.cross,
    )
    return out_TX.view_as(stream.tokens_TCphw)


adapter = DitAdapter()
