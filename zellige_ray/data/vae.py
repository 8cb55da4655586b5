"""The VAE codec: latents of any diffusers VAE, by local folder or hub id.

Shape suffixes: B batch of one, C channels, F frames, H rows, W columns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from zellige_ray.data.codec import Latents, Pixels, check_frames
from zellige_ray.errors import DataError
from zellige_ray.models.fingerprint import weights_hash


class VaeCodec:
    """A diffusers VAE as a codec: the posterior's mode, normalised as its pipeline does it, in float32."""

    def __init__(self, vae: Any, signature: str) -> None:
        self.signature = signature
        self._vae = vae.eval().requires_grad_(False)
        self._is_video = any(p.ndim == 5 for p in vae.parameters())
        self._device = next(vae.parameters()).device
        self.channels, self.temporal_stride, self.spatial_stride = self._measure()
        self._mean, self._deviation = _statistics(vae.config, self.channels)

    def encode(self, frames_FHWC: Pixels) -> Latents:
        """`latents_CFHW` of `frames_FHWC`. Raises DataError for sizes that don't divide."""
        check_frames(self, frames_FHWC)
        latents = self._encode(torch.from_numpy(np.ascontiguousarray(frames_FHWC)).float() / 127.5 - 1)
        return np.ascontiguousarray(((latents - self._mean) / self._deviation).numpy(), dtype=np.float32)

    def decode(self, latents_CFHW: Any) -> Pixels:
        """`frames_FHWC` of latents."""
        latents = torch.as_tensor(np.asarray(latents_CFHW, dtype=np.float32)) * self._deviation + self._mean
        with torch.inference_mode():
            if self._is_video:
                out_CFHW = self._vae.decode(latents[None].to(self._device)).sample[0]
            else:
                out_CFHW = self._vae.decode(latents.transpose(0, 1).to(self._device)).sample.transpose(0, 1)
        pixels = ((out_CFHW.float().cpu() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        frames_FHWC: Pixels = pixels.permute(1, 2, 3, 0).contiguous().numpy()
        return frames_FHWC

    def _encode(self, frames_FHWC: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            if self._is_video:
                x_BCFHW = frames_FHWC.permute(3, 0, 1, 2)[None].to(self._device)
                return _mode(self._vae.encode(x_BCFHW))[0].float().cpu()
            x_FCHW = frames_FHWC.permute(0, 3, 1, 2).to(self._device)
            return _mode(self._vae.encode(x_FCHW)).transpose(0, 1).float().cpu()

    def _measure(self) -> tuple[int, int, int]:
        """(channels, temporal stride, spatial stride), by encoding 9 black frames of 64x64."""
        channels, frames, height, _ = self._encode(torch.zeros(9 if self._is_video else 1, 64, 64, 3)).shape
        return channels, 8 // (frames - 1) if self._is_video else 1, 64 // height


def load_vae(path: str) -> VaeCodec:
    """The codec of a VAE, or of the `vae` part of a pipeline. Raises DataError when diffusers can't load it."""
    from diffusers import AutoModel

    local = Path(path)
    subfolder = "vae" if (local / "vae" / "config.json").is_file() else None
    try:
        load: Any = AutoModel.from_pretrained
        vae = load(path, subfolder=subfolder, torch_dtype=torch.float32)
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError) as fault:
        raise DataError(f"cannot load a diffusers VAE from data.codec.path {path!r}: {fault}") from fault
    if not hasattr(vae, "encode") or not hasattr(vae, "decode"):
        raise DataError(f"data.codec.path {path!r} holds {type(vae).__name__}, which is no VAE")
    return VaeCodec(vae, f"vae-{local.name or path}-{weights_hash(vae)}/1")


def _mode(output: Any) -> torch.Tensor:
    latents: torch.Tensor = output.latent_dist.mode() if hasattr(output, "latent_dist") else output.latent
    return latents


def _statistics(config: Any, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(mean, deviation) per channel, [C, 1, 1, 1], from the VAE's config; 0 and 1 where it states none."""
    mean, deviation = getattr(config, "latents_mean", None), getattr(config, "latents_std", None)
    if mean is None or deviation is None:
        mean = [getattr(config, "shift_factor", None) or 0.0] * channels
        deviation = [1 / (getattr(config, "scaling_factor", None) or 1.0)] * channels
    as_column = [torch.tensor(values, dtype=torch.float32).reshape(-1, 1, 1, 1) for values in (mean, deviation)]
    return as_column[0], as_column[1]
