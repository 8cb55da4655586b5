"""Family: what the adapters over diffusers' models share; each of them adds `create`, `hook` and `run`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models.adapter import LatentShape, grid_positions, patchify, unpatchify
from zellige_ray.models.bound import Bound, Checkpointing, bind_once
from zellige_ray.models.making import finish, from_architecture
from zellige_ray.models.specs import ModelSpec, specs
from zellige_ray.models.stream import Stream

NUM_TIMESTEPS = 1000.0


class Family(ABC):
    """An adapter of one diffusers class. `name` is its key in `specs`; `zero`: submodules whose weights start at 0."""

    name: str
    zero: tuple[str, ...] = ("proj_out",)

    @property
    def spec(self) -> ModelSpec:
        return specs[self.name]

    @abstractmethod
    def create(self, config: ModelConfig, text_dim: int) -> nn.Module:
        """A module of the configured size, weights as they come."""

    @abstractmethod
    def blocks(self, module: Any) -> list[nn.Module]:
        """Units of checkpointing, in lock-step order."""

    @abstractmethod
    def hook(self, module: Any, bound: Bound) -> None:
        """Send attention to the engine, make conditioning Rows, override positions."""

    @abstractmethod
    def run(self, module: Any, stream: Stream) -> Tensor:
        """The module's own forward on the padded stream; the result is shaped like its tokens."""

    def make(self, config: ModelConfig, text_dim: int) -> nn.Module:
        if config.architecture is not None:
            return from_architecture(self.name, config.architecture)
        return self.create(config, text_dim)

    def build(
        self, config: ModelConfig, text_dim: int, seed: int, dtype: torch.dtype, device: torch.device | str
    ) -> nn.Module:
        return finish(self.make(config, text_dim), config, seed, dtype, device, self.zero)

    def bind(self, module: nn.Module, checkpointing: Checkpointing | None = None) -> Bound:
        return bind_once(module, lambda mode: self._bind(module, mode), checkpointing)

    def tokens(self, latents_CFHW: Tensor, start: int, stop: int) -> Tensor:
        return patchify(latents_CFHW, self.spec.patch, start, stop)

    def untokens(self, tokens_TCphw: Tensor, latent_shape: LatentShape) -> Tensor:
        return unpatchify(tokens_TCphw, latent_shape)

    def positions(self, latent_shape: LatentShape, start: int, stop: int) -> Tensor:
        return grid_positions(self.spec.grid(latent_shape), start, stop)

    def _bind(self, module: nn.Module, mode: Checkpointing) -> Bound:
        bound = Bound(module, self.blocks(module), self.run, mode, self.spec.joint)
        self.hook(module, bound)
        return bound


def require(config: ModelConfig, mlp_ratio: float | None = None, head_multiple: int = 2) -> None:
    """ModelError where an architecture has no such MLP ratio, or can't rotate such heads."""
    if mlp_ratio is not None and config.mlp_ratio != mlp_ratio:
        raise ModelError(f"{config.name} has an MLP ratio of {mlp_ratio:g}, got {config.mlp_ratio:g} (model.mlp_ratio)")
    if config.head_dim % head_multiple:
        raise ModelError(
            f"{config.name} needs a head_dim that is a multiple of {head_multiple}, "
            f"got {config.head_dim} (model.head_dim)"
        )


def rope_axes(head_dim: int) -> tuple[int, int, int]:
    """Rotated dims per axis (frame, row, column), in the proportions of Flux: 16, 56, 56 of 128."""
    side = 2 * (head_dim * 7 // 32)
    return head_dim - 2 * side, side, side


def as_clip(tokens_TCphw: Tensor) -> Tensor:
    """T patches as T pseudo-frames of one clip [1, C, T pt, ph, pw]: for a Conv3d with kernel = stride."""
    return tokens_TCphw.transpose(0, 1).flatten(1, 2).unsqueeze(0)


def from_clip(clip_1CTphw: Tensor, like_TCphw: Tensor) -> Tensor:
    """The inverse of `as_clip`."""
    T, _, pt, ph, pw = like_TCphw.shape
    return clip_1CTphw[0].reshape(-1, T, pt, ph, pw).transpose(0, 1)


def as_picture(tokens_TCphw: Tensor) -> Tensor:
    """T patches below each other in one picture [1, C, T ph, pw]: for a Conv2d with kernel = stride."""
    T, C, _, ph, pw = tokens_TCphw.shape
    return tokens_TCphw.reshape(T, C, ph, pw).transpose(0, 1).reshape(1, C, T * ph, pw)


def from_picture(picture_1CTphw: Tensor, like_TCphw: Tensor) -> Tensor:
    """The inverse of `as_picture`."""
    T, _, _pt, ph, pw = like_TCphw.shape
    return picture_1CTphw[0].reshape(-1, T, ph, pw).transpose(0, 1).unsqueeze(2)


def embed_patches(embedder: Any, picture_1CTphw: Tensor, place_TD: Tensor) -> Tensor:
    """What diffusers' PatchEmbed does, with a position of its own for every patch: [1, T, D]."""
    latent_1TD = embedder.proj(picture_1CTphw).flatten(2).transpose(1, 2)
    if embedder.norm is not None:
        latent_1TD = embedder.norm(latent_1TD)
    out: Tensor = (latent_1TD + place_TD.unsqueeze(0)).to(latent_1TD.dtype)
    return out


def sincos_places(embedder: Any, stream: Stream) -> Tensor:
    """PatchEmbed's sine tables, stretched to each sequence's grid, per token: [T, D]; dummies get zeros."""
    from diffusers.models.embeddings import get_2d_sincos_pos_embed

    width, device = embedder.pos_embed.shape[-1], embedder.pos_embed.device
    tables: dict[tuple[int, int], Tensor] = {}
    parts: list[Tensor] = []
    places = torch.split(stream.positions_T3[: stream.num_tokens], list(stream.visual_lengths))
    for (_, h, w), place in zip(stream.grids, places, strict=True):
        if (h, w) not in tables:
            table = get_2d_sincos_pos_embed(
                width,
                (h, w),
                base_size=embedder.base_size,
                interpolation_scale=embedder.interpolation_scale,
                device=device,
                output_type="pt",
            )
            tables[h, w] = table.float().to(embedder.pos_embed.dtype)
        parts.append(tables[h, w].index_select(0, place[:, 1] * w + place[:, 2]))
    missing = stream.tokens_TCphw.shape[0] - stream.num_tokens
    return torch.cat([*parts, embedder.pos_embed.new_zeros(missing, width)])
