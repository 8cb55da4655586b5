"""The mini set as latents of random values: the shapes and captions' lengths of real media, without any download.

Shapes are those of `data.source=mini data.max_pixels=102400 data.max_frames=33`: pictures of 320 x 320 pixels at their
own aspect ratio, clips of up to nine latent frames.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from zellige_ray.data.cache import FORMAT, SETTINGS, Entry, LatentCache, write_entry, write_listing

SHAPES = Path(__file__).with_name("mini_latents.csv")
TEXT_DIM, CHANNELS, TEMPORAL, SPATIAL, PATCH = 64, 16, 4, 8, 2


def write_mini_latents(folder: Path, seed: int = 0, fraction: int = 1) -> LatentCache:
    """A latent cache with every sample of the mini set. fraction: sides are divided by it, for a quick look."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    strides = {"latent_channels": CHANNELS, "temporal_stride": TEMPORAL, "spatial_stride": SPATIAL}
    settings = {"format": FORMAT, "codec": "random", "text_dim": TEXT_DIM, **strides}
    (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    entries = []
    with SHAPES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            frames, rows, columns = int(row["frames"]), int(row["rows"]), int(row["columns"])
            entry = _entry(
                row["id"],
                (frames, rows // fraction // PATCH * PATCH, columns // fraction // PATCH * PATCH),
                int(row["text_tokens"]),
            )
            (folder / entry.file).parent.mkdir(exist_ok=True)
            latents = rng.standard_normal(entry.latent_shape).astype(np.float32)
            write_entry(folder, entry, latents, rng.standard_normal((entry.text_tokens, TEXT_DIM)).astype(np.float32))
            entries.append(entry)
    write_listing(folder, entries)
    return LatentCache(folder)


def _entry(name: str, grid: tuple[int, int, int], text_tokens: int) -> Entry:
    frames, height, width = TEMPORAL * (grid[0] - 1) + 1, SPATIAL * grid[1], SPATIAL * grid[2]
    return Entry(
        id=name, media="image" if frames == 1 else "video", latent_shape=(CHANNELS, *grid), text_tokens=text_tokens,
        weight=1.0, file=f"{name}.safetensors", source="random", source_width=width, source_height=height,
        source_frames=frames, more=False, width=width, height=height, frames=frames,
        caption=" ".join(["word"] * text_tokens), caption_tokens=text_tokens, scaled=False,
    )  # fmt: skip
