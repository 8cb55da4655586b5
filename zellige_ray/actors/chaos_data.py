"""Random latents to train on while things break: the same content every time, no media, no download."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from zellige_ray.data.cache import FORMAT, SETTINGS, Entry, write_entry, write_listing

TEXT_DIM, CHANNELS, WORDS = 16, 16, 4
# latent (frames, rows, columns): mostly pictures, a few clips that are worth cutting
SHAPES = ((1, 8, 12), (1, 12, 12), (1, 8, 16), (1, 16, 16), (3, 8, 12), (6, 12, 16))


def write_random_latents(folder: Path, num_samples: int, scale: int) -> None:
    """A latent cache. scale: factor on rows and columns, so that a step takes as long as it should."""
    rng = np.random.default_rng(11)
    folder.mkdir(parents=True)
    strides = {"latent_channels": CHANNELS, "temporal_stride": 4, "spatial_stride": 8}
    settings = {"format": FORMAT, "codec": "random", "text_dim": TEXT_DIM, **strides}
    (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    entries = []
    for i in range(num_samples):
        frames, rows, columns = SHAPES[i % len(SHAPES)]
        shape = (frames, rows * scale, columns * scale)
        media, pixels = ("image" if frames == 1 else "video"), (8 * shape[2], 8 * shape[1])
        entry = Entry(
            id=f"{media}-{i}", media="image" if frames == 1 else "video", latent_shape=(CHANNELS, *shape),
            text_tokens=WORDS, weight=1.0, file=f"{media}-{i}.safetensors", source="random", source_width=pixels[0],
            source_height=pixels[1], source_frames=4 * frames - 3, more=False, width=pixels[0], height=pixels[1],
            frames=4 * frames - 3, caption=" ".join(["word"] * WORDS), caption_tokens=WORDS, scaled=False,
        )  # fmt: skip
        latents = rng.standard_normal((CHANNELS, *shape)).astype(np.float32)
        write_entry(folder, entry, latents, rng.standard_normal((WORDS, TEXT_DIM)).astype(np.float32))
        entries.append(entry)
    write_listing(folder, entries)
