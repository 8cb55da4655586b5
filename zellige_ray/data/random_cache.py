"""A latent cache of random content in given shapes: what profiles and benchmarks train on where no data is needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zellige_ray.data.cache import FORMAT, SETTINGS, Entry, LatentCache, write_entry, write_listing
from zellige_ray.models.specs import ModelSpec


def write_random_cache(
    folder: Path, spec: ModelSpec, grids: Sequence[tuple[tuple[int, int, int], int]], text_dim: int, seed: int = 0
) -> LatentCache:
    """One sample per grid.

    grids: ((frames, rows, columns) in tokens, caption tokens). Raises DataError when the disk refuses.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    strides = {"temporal_stride": spec.temporal_stride, "spatial_stride": spec.spatial_stride}
    settings = {"format": FORMAT, "codec": "random", "text_dim": text_dim, "latent_channels": spec.latent_channels}
    (folder / SETTINGS).write_text(json.dumps({**settings, **strides}), encoding="utf-8")
    entries = []
    for i, (grid, words) in enumerate(grids):
        frames, height, width = (n * p for n, p in zip(grid, spec.patch, strict=True))
        shape = (spec.latent_channels, frames, height, width)
        name = f"{'image' if frames == 1 else 'clip'}-{i:02d}"
        pixels = {"width": spec.spatial_stride * width, "height": spec.spatial_stride * height}
        num = spec.temporal_stride * (frames - 1) + 1
        entry = Entry(
            id=name, media="image" if frames == 1 else "video", latent_shape=shape, text_tokens=words, weight=1.0,
            file=f"{name}.safetensors", source="random", source_width=pixels["width"], source_height=pixels["height"],
            source_frames=num, more=False, frames=num, scaled=False, caption="", caption_tokens=words, **pixels,
        )  # fmt: skip
        latents = rng.standard_normal(shape, dtype=np.float32)
        write_entry(folder, entry, latents, rng.standard_normal((words, text_dim), dtype=np.float32))
        entries.append(entry)
    write_listing(folder, entries)
    return LatentCache(folder)
