"""Previews: the tokens of all ranks put together, decoded to a picture or a clip, written to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from zellige_ray.config import DataConfig
from zellige_ray.data.codec import make_codec
from zellige_ray.data.index import SampleMeta
from zellige_ray.data.media import write_mp4, write_png
from zellige_ray.models.adapter import ModelAdapter
from zellige_ray.training.runner import Denoised

FRAMES_PER_SECOND = 12


class Previews:
    """Writes pictures of denoised latents with the data set's own codec."""

    def __init__(self, data: DataConfig, adapter: ModelAdapter) -> None:
        self._codec = make_codec(data.codec)
        self._adapter = adapter

    def write(self, folder: str, sample: SampleMeta, parts: Sequence[Denoised]) -> str:
        """Writes `<id>.png`, and `<id>.mp4` for a clip, into `folder`; the name of the file that shows all of it."""
        ordered = sorted(parts, key=lambda part: part.start)
        tokens_TCphw = torch.cat([torch.from_numpy(part.tokens) for part in ordered])
        latents_CFHW = self._adapter.untokens(tokens_TCphw, sample.latent_shape)
        frames_FHWC = self._codec.decode(latents_CFHW)
        stem = "".join(c if c.isalnum() or c in "._-" else "_" for c in sample.id)
        picture, clip = Path(folder) / f"{stem}.png", Path(folder) / f"{stem}.mp4"
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_png(picture, frames_FHWC[len(frames_FHWC) // 2])
        if len(frames_FHWC) == 1:
            return picture.name
        write_mp4(clip, frames_FHWC, FRAMES_PER_SECOND)
        return clip.name
