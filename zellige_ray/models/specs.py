"""Model specs: what the driver and the data room must know of a model, in plain numbers, without torch."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from zellige_ray.errors import ModelError

if TYPE_CHECKING:
    from zellige_ray.config import ModelConfig
    from zellige_ray.placement import ModelPreset
    from zellige_ray.placement.sequence import TextMode


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes and rules of one architecture.

    patch: latent frames, rows and columns of one token. text: how captions enter. The strides and the channels are
    those of the latents it expects. extra_mlp_ratio: token-wise work beside self-attention's projections and the MLP,
    in units of one MLP ratio (cross-attention's query and output projections are 4 d^2 FLOPs, as much as one unit).
    joint: which half comes first where text and visual tokens attend together. max_frames: 1 for picture models.
    max_degree: ranks that may share one sequence; None where any number can.
    """

    name: str
    patch: tuple[int, int, int]
    text: TextMode
    temporal_stride: int = 4
    spatial_stride: int = 8
    latent_channels: int = 16
    extra_mlp_ratio: float = 0.0
    joint: Literal["txt", "img"] | None = None
    max_frames: int | None = None
    max_degree: int | None = None

    def grid(self, latent_shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
        """Tokens along frames, rows and columns of latents (C, F, H, W); ModelError where patches do not fit."""
        channels, *sizes = latent_shape
        if channels != self.latent_channels:
            raise ModelError(
                f"{self.name} takes {self.latent_channels} latent channels, these have {channels}; change data.codec"
            )
        if any(n <= 0 or n % p for n, p in zip(sizes, self.patch, strict=True)):
            raise ModelError(
                f"latents of {tuple(sizes)} (frames, rows, columns) do not fit {self.name}'s patch {self.patch}: "
                f"encode frames whose sides are multiples of {self.size_multiple}"
            )
        if self.max_frames is not None and sizes[0] > self.max_frames:
            raise ModelError(f"{self.name} takes {self.max_frames} latent frame, these latents have {sizes[0]}")
        f, h, w = (n // p for n, p in zip(sizes, self.patch, strict=True))
        return f, h, w

    def tokens(self, latent_shape: tuple[int, int, int, int]) -> int:
        """Visual tokens of latents (C, F, H, W)."""
        f, h, w = self.grid(latent_shape)
        return f * h * w

    def frame_rule(self, frames: int) -> int:
        """Frames of a clip that can be used: 1, or the largest (patch x stride) n + 1 not above `frames`."""
        if frames < 1:
            raise ModelError(f"a clip of {frames} frames can't be used by {self.name}; it needs at least 1")
        if self.max_frames == 1:
            return 1
        step = self.temporal_stride * self.patch[0]
        return (frames - 1) // step * step + 1

    @property
    def patch_values(self) -> int:
        """Values of one token."""
        return self.latent_channels * self.patch[0] * self.patch[1] * self.patch[2]

    @property
    def size_multiple(self) -> int:
        """Pixels that divide the sides of a frame: spatial stride x patch."""
        return self.spatial_stride * max(self.patch[1], self.patch[2])

    def preset(self, model: ModelConfig, dtype_bytes: int) -> ModelPreset:
        """The planner's view of a configured model: cross-attention's projections are counted as MLP width."""
        from zellige_ray.placement import ModelPreset

        return ModelPreset(
            name=self.name,
            layers=model.layers,
            hidden=model.heads * model.head_dim,
            heads=model.heads,
            mlp_ratio=model.mlp_ratio + self.extra_mlp_ratio,
            text=self.text,
            dtype_bytes=dtype_bytes,
            checkpointing="none" if model.checkpointing == "none" else "full",
        )


specs: dict[str, ModelSpec] = {
    "wan": ModelSpec("wan", patch=(1, 2, 2), text="cross", extra_mlp_ratio=1.0),
    "dit": ModelSpec("dit", patch=(1, 2, 2), text="cross", extra_mlp_ratio=1.0),
    "flux": ModelSpec("flux", patch=(1, 2, 2), text="joint", joint="txt", max_frames=1),
    "flux2": ModelSpec("flux2", patch=(1, 2, 2), text="joint", latent_channels=32, joint="txt", max_frames=1),
    "qwen": ModelSpec("qwen", patch=(1, 2, 2), text="joint", joint="txt", max_frames=1),
    "ltx": ModelSpec("ltx", (1, 1, 1), "cross", 8, 32, latent_channels=128, extra_mlp_ratio=1.0),
    "hunyuan": ModelSpec("hunyuan", patch=(1, 2, 2), text="joint", joint="img"),
    "sd3": ModelSpec("sd3", patch=(1, 2, 2), text="joint", joint="img", max_frames=1),
    "cogvideox": ModelSpec("cogvideox", patch=(1, 2, 2), text="joint", joint="txt"),
    "pixart": ModelSpec("pixart", (1, 2, 2), "cross", latent_channels=4, extra_mlp_ratio=1.0, max_frames=1),
    "sana": ModelSpec("sana", (1, 1, 1), "cross", 1, 32, 32, extra_mlp_ratio=1.0, max_frames=1, max_degree=1),
    "label_dit": ModelSpec("label_dit", patch=(1, 2, 2), text="cross", latent_channels=4, max_frames=1),
}


def get_spec(name: str) -> ModelSpec:
    """The spec of a model; ModelError names the nearest known one."""
    if name not in specs:
        near = difflib.get_close_matches(name, specs, n=1, cutoff=0.0)[0]
        raise ModelError(
            f"unknown model {name!r}: the nearest known one is {near!r}, all are {sorted(specs)} (model.name)"
        )
    return specs[name]
