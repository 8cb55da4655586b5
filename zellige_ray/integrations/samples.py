"""Samples of a user's own loader: global batches drawn the same way on every rank, latents read where they are needed.

A sample is a mapping with `latents` [C, F, H, W] and `text` [L, D], or a pair of the two. Optional in a mapping: `id`,
`weight`; `pooled` [P] for models that take one vector per caption (flux, sd3, hunyuan), `label` for those with classes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from zellige_ray.data.index import SampleMeta
from zellige_ray.errors import ConfigError, DataError
from zellige_ray.training.batch import Share


class Samples:
    """One global batch. It reads like a latent cache; what `shape` of the data set tells is not read for it."""

    def __init__(self, dataset: Any, keys: Iterable[Any], prefix: str = "") -> None:
        """dataset: `dataset[key]` is a sample; optional `dataset.shape(key)`: (latent shape, caption tokens)."""
        self._dataset = dataset
        self._read: dict[str, _Sample] = {}
        self._key: dict[str, Any] = {}
        self._keys, self._prefix = tuple(keys), prefix

    @functools.cached_property
    def metas(self) -> tuple[SampleMeta, ...]:
        """Every sample by its shape, found out when it is first asked for. Raises DataError."""
        metas = tuple(self._meta(key, self._prefix) for key in self._keys)
        if not metas:
            raise DataError("the loader gave a batch without samples")
        if len({m.id for m in metas}) < len(metas):
            raise DataError(f"a batch holds a sample twice: {sorted(m.id for m in metas)}")
        return metas

    def _meta(self, key: Any, prefix: str) -> SampleMeta:
        name = f"{prefix}{key}"
        if hasattr(self._dataset, "shape"):
            shape, words = self._dataset.shape(key)
            self._key[name] = key
            return _as_meta(name, tuple(shape), words, 1.0)
        sample = _sample(self._dataset[key], name)
        self._read[sample.id] = sample
        return _as_meta(sample.id, tuple(sample.latents_CFHW.shape), sample.text_LD.shape[0], sample.weight)

    def _of(self, meta: SampleMeta) -> _Sample:
        if meta.id not in self._read:
            sample = _sample(self._dataset[self._key[meta.id]], meta.id)
            found = tuple(sample.latents_CFHW.shape), sample.text_LD.shape[0]
            if found != (meta.latent_shape, meta.text_tokens):
                raise DataError(
                    f"sample {meta.id}: shape() says {meta.latent_shape}, {meta.text_tokens}; it is {found}"
                )
            self._read[meta.id] = sample
        return self._read[meta.id]

    def read_frames(self, meta: SampleMeta, first: int, last: int) -> Tensor:
        """Latent frames [first, last) of a sample."""
        return self._of(meta).latents_CFHW[:, first:last]

    def read_text(self, meta: SampleMeta) -> Tensor:
        """The caption's embeddings."""
        return self._of(meta).text_LD

    def conditioned(self, share: Share) -> Share:
        """A share with its samples' pooled vectors and labels, row by row. Raises DataError where some lack one."""
        rows = [self._of(meta) for meta in {span.sample.id: span.sample for span in share.spans}.values()]
        packed, like = share.packed, share.packed.text_LD
        pooled = _all_or_none("pooled", rows, [sample.pooled_P for sample in rows])
        labels = _all_or_none("label", rows, [sample.label for sample in rows])
        if pooled is not None:
            packed = replace(packed, pooled_RP=torch.stack(pooled).to(device=like.device, dtype=like.dtype))
        if labels is not None:
            packed = replace(packed, labels_R=torch.tensor(labels, dtype=torch.int64, device=like.device))
        return share if packed is share.packed else replace(share, packed=packed)


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    id: str
    latents_CFHW: Tensor
    text_LD: Tensor
    weight: float = 1.0
    pooled_P: Tensor | None = None
    label: int | None = None


def _sample(value: Any, name: str) -> _Sample:
    more: dict[str, Any] = {}
    if isinstance(value, Mapping) and {"latents", "text"} <= value.keys():
        latents, text, pooled, label = value["latents"], value["text"], value.get("pooled"), value.get("label")
        more = {"weight": float(value.get("weight", 1.0)), "label": None if label is None else int(label)}
        more["pooled_P"] = None if pooled is None else pooled.flatten()
        name = str(value.get("id", name))
    elif isinstance(value, (tuple, list)) and len(value) == 2:
        latents, text = value
    else:
        raise DataError(f"sample {name} is {type(value).__name__}: expected a mapping with latents and text, or a pair")
    if latents.ndim != 4 or text.ndim != 2:
        raise DataError(
            f"sample {name}: latents {tuple(latents.shape)}, text {tuple(text.shape)}; expected [C, F, H, W] and [L, D]"
        )
    return _Sample(name, latents, text, **more)


def _all_or_none(key: str, rows: Sequence[_Sample], values: Sequence[Any]) -> list[Any] | None:
    lacking = [row.id for row, value in zip(rows, values, strict=True) if value is None]
    if len(lacking) == len(rows):
        return None
    if lacking:
        raise DataError(f"sample {lacking[0]} has no `{key}`, others of its batch have one: give it to all or to none")
    return list(values)


def _as_meta(name: str, shape: tuple[int, ...], words: int, weight: float) -> SampleMeta:
    channels, frames, height, width = shape
    return SampleMeta(name, "image" if frames == 1 else "video", (channels, frames, height, width), words, weight)


def draw(loader: Any, seed: int, pass_: int) -> Iterator[Samples]:
    """The global batches of one pass.

    Of a DataLoader over a map-style data set, the order is a function of (seed, pass), and samples are read from the
    data set itself; anything else must give lists of samples, the same on every rank. Raises ConfigError for a loader
    that is split over ranks already.
    """
    sampler = getattr(loader, "sampler", None)
    if hasattr(sampler, "num_replicas"):
        raise ConfigError("batches() takes the plain loader of the global batch: leave out prepare_data_loader")
    if isinstance(loader, DataLoader) and loader.batch_sampler is not None and hasattr(loader.dataset, "__getitem__"):
        for keys in _order(loader, (seed << 20) + pass_):
            yield Samples(loader.dataset, keys)
        return
    for number, batch in enumerate(loader):
        listed = list(batch)
        yield Samples(listed, range(len(listed)), f"{pass_}/{number}/")


def _order(loader: Any, seed: int) -> list[list[Any]]:
    """The keys of a pass; torch's own seed stays as it is, and does not matter."""
    sampler = loader.sampler
    if getattr(sampler, "generator", 0) is None:  # torch's RandomSampler: it would draw a seed of its own
        sampler.generator = torch.Generator().manual_seed(seed)
        try:
            return [list(keys) for keys in loader.batch_sampler]
        finally:
            sampler.generator = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [list(keys) for keys in loader.batch_sampler]
