"""A latent cache of a few odd-sized samples with random content, written as the data room writes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from zellige_ray.data.cache import FORMAT, SETTINGS, Entry, LatentCache, write_entry, write_listing

TEXT_DIM = 8
# (frames, rows, columns) of latents and caption tokens; images and clips, one token to 90, one caption empty
SHAPES = [
    ((1, 2, 2), 3), ((1, 2, 6), 0), ((1, 4, 6), 1), ((1, 6, 6), 5), ((1, 2, 2), 2), ((1, 4, 10), 7), ((1, 6, 14), 4),
    ((3, 2, 6), 2), ((5, 6, 12), 3), ((2, 4, 6), 0), ((3, 6, 10), 9), ((4, 4, 4), 1),
]  # fmt: skip


def write_cache(folder: Path) -> LatentCache:
    """Twelve samples; the same content every time."""
    rng = np.random.default_rng(5)
    folder.mkdir(parents=True)
    strides = {"latent_channels": 16, "temporal_stride": 4, "spatial_stride": 8}
    settings = {"format": FORMAT, "codec": "random", "text_dim": TEXT_DIM, **strides}
    (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    entries = []
    for i, (shape, words) in enumerate(SHAPES):
        media = "image" if shape[0] == 1 else "video"
        frames, height, width = 4 * (shape[0] - 1) + 1, 8 * shape[1], 8 * shape[2]
        entry = Entry(
            id=f"{media}-{i}", media=media, latent_shape=(16, *shape), text_tokens=words, weight=1.0,
            file=f"{media}-{i}.safetensors", source="random", source_width=width, source_height=height,
            source_frames=frames, more=False, width=width, height=height, frames=frames,
            caption=" ".join(["word"] * words), caption_tokens=words, scaled=False,
        )  # fmt: skip
        latents = rng.standard_normal((16, *shape)).astype(np.float32)
        write_entry(folder, entry, latents, rng.standard_normal((words, TEXT_DIM)).astype(np.float32))
        entries.append(entry)
    write_listing(folder, entries)
    return LatentCache(folder)
