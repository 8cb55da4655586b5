"""A survey of a data set: every sample by the shape that it will have, from headers, before anything is encoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zellige_ray.config import DataConfig
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.errors import DataError

if TYPE_CHECKING:
    from zellige_ray.data.media import Probe
    from zellige_ray.data.sources import Item
    from zellige_ray.models.specs import ModelSpec


@dataclass(frozen=True, slots=True)
class Survey:
    """index: what can be used. refused: (file, reason) of what can't."""

    index: Index
    refused: tuple[tuple[str, str], ...]


def survey(config: DataConfig, spec: ModelSpec) -> Survey:
    """The samples of all sources, by the model's size and frame rules; of a latent cache, as they are.

    Words of a caption are counted as its tokens, up to data.text.max_tokens. Raises DataError like the encoding would.
    """
    seen = {name: _survey(part, spec) for name, part in config.each().items()}
    if config.sources is None:
        return seen[""]
    index = Index.mixed({name: one.index for name, one in seen.items()}, config.ratios)
    return Survey(index, tuple(row for one in seen.values() for row in one.refused))


def _survey(config: DataConfig, spec: ModelSpec) -> Survey:
    """Of one source."""
    from zellige_ray.data.cache import SETTINGS, LatentCache
    from zellige_ray.data.sources import list_source

    source = Path(config.path)
    if config.path == "mini":
        from zellige_ray.data import mini

        source = mini.fetch(Path(config.cache).parent / "mini")
    if (source / SETTINGS).is_file():
        return Survey(LatentCache(source).index(), ())
    if not source.exists():
        raise DataError(f"data source {source} does not exist; data.source is a folder, a manifest or a latent cache")
    usable: list[SampleMeta] = []
    refused: list[tuple[str, str]] = []
    for item in list_source(source).items:
        try:
            usable.append(examine(item, config, spec)[0])
        except DataError as fault:
            refused.append((str(item.path), str(fault)))
    if not usable:
        raise DataError(f"no usable file in {source}, {len(refused)} tried; the first: {refused[0][1]}")
    return Survey(Index.of(usable), tuple(refused))


def examine(item: Item, config: DataConfig, spec: ModelSpec) -> tuple[SampleMeta, Probe]:
    """The sample that an item will be, and what its header says. Raises DataError when it can't be used."""
    from zellige_ray.data.geometry import fit
    from zellige_ray.data.media import probe

    found = probe(item.path)
    used = fit(found.height, found.width, config.max_pixels, spec.size_multiple)
    there = found.frames - item.start if found.frames is not None else item.frames or config.max_frames
    if there is None:
        raise DataError(
            "its header does not say how many frames it has; set data.max_frames, or `frames` in a manifest"
        )
    if there < 1 or (item.frames is not None and item.frames > there):
        raise DataError(f"it has {max(there, 0)} frames from {item.start}, the manifest says {item.frames or 'more'}")
    limits = [n for n in (there, item.frames, config.max_frames) if n is not None]
    frames = (spec.frame_rule(min(limits)) - 1) // spec.temporal_stride + 1
    shape = (spec.latent_channels, frames, used.height // spec.spatial_stride, used.width // spec.spatial_stride)
    words = min(len(item.caption.split()), config.text.max_tokens)
    meta = SampleMeta(item.id, "image" if frames == 1 else "video", shape, words, item.weight, str(item.path))
    return meta, found
