"""Encoding: fills a latent cache from media, and tells what it did with every file.

Files are decoded in processes of their own, several at a time; latents are written as they are made, so that an
encoding that was stopped goes on where it stood.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zellige_ray.config import DataConfig
from zellige_ray.data import mini
from zellige_ray.data.atomic import replace_file
from zellige_ray.data.cache import (
    FORMAT,
    SETTINGS,
    SUFFIX,
    Entry,
    LatentCache,
    read_entry,
    read_listing,
    write_entry,
    write_listing,
)
from zellige_ray.data.codec import Codec, make_codec
from zellige_ray.data.decoder import Decoder
from zellige_ray.data.geometry import fit
from zellige_ray.data.quarantine import Quarantine, Refused
from zellige_ray.data.report import EncodeReport, make_report
from zellige_ray.data.sources import Item, Listing, list_source
from zellige_ray.data.text import TextEncoder, make_encoder
from zellige_ray.errors import DataError
from zellige_ray.models.specs import ModelSpec

Progress = Callable[[str, int, int], None]  # name of the phase, done, total
MAX_DECODERS = 4
_SHOWN = 5


def prepare(
    config: DataConfig,
    spec: ModelSpec,
    progress: Progress | None = None,
    told: Callable[[EncodeReport], None] | None = None,
) -> LatentCache:
    """The latent cache of a data source: encodes what is missing, returns at once when all is there.

    told: gets the report, unless the source is a cache already.
    Raises DataError like `encode`; for a source that is a cache already, when the model can't use its latents.
    """
    source = Path(config.path)
    if (source / SETTINGS).is_file():
        cache = LatentCache(source)
        _check_spec(cache.settings, spec, f"latent cache {source}")
        return cache
    report, cache = encode(config, spec, progress)
    if told is not None:
        told(report)
    return cache


def encode(config: DataConfig, spec: ModelSpec, progress: Progress | None = None) -> tuple[EncodeReport, LatentCache]:
    """Encodes a data source by the model's frame and size rules; returns the report and the cache.

    Raises DataError: an empty or contradictory source, a codec or text encoder that can't be loaded or does not fit the
    model, no readable file, more corrupt files than data.max_corrupt.
    """
    started = time.monotonic()
    progress = progress or _silent
    listing = _listing(config, progress)
    run = _Encoding.start(config, spec, listing)
    done = run.find_done(listing)
    refused = [row for item in listing.items if (row := run.quarantine.find(item.id, item.key())) is not None]
    known = {entry.id for entry in done} | {row.id for row in refused}
    todo = [item for item in listing.items if item.id not in known]
    run.check_corrupt(refused, listing)
    written: list[Entry] = []
    if todo:
        progress("encode", 0, len(todo))
        replace_file(run.folder / SETTINGS, json.dumps(run.settings, indent=1).encode())
        with closing(_encode_all(run, todo)) as results:
            for number, result in enumerate(results, start=1):
                if isinstance(result, Entry):
                    written.append(result)
                else:
                    run.quarantine.add(result)
                    refused.append(result)
                    run.check_corrupt(refused, listing)
                progress("encode", number, len(todo))
    entries = sorted([*done, *written], key=lambda entry: entry.id)
    if entries != read_listing(run.folder):
        write_listing(run.folder, entries)
    report = make_report(
        entries,
        [spec.tokens(entry.latent_shape) for entry in entries],
        written=len(written),
        uncaptioned=listing.uncaptioned,
        ignored=listing.ignored,
        orphans=listing.orphans,
        quarantined=sorted(refused, key=lambda row: row.id),
        seconds=time.monotonic() - started,
    )
    return report, LatentCache(run.folder, tuple(entry.file for entry in entries))


@dataclass(frozen=True, slots=True)
class _Encoding:
    """Everything that turns one item into one entry."""

    config: DataConfig
    spec: ModelSpec
    codec: Codec
    text: TextEncoder
    settings: dict[str, Any]
    folder: Path
    quarantine: Quarantine
    lock: threading.Lock  # codec and text encoder are used by one thread at a time

    @classmethod
    def start(cls, config: DataConfig, spec: ModelSpec, listing: Listing) -> _Encoding:
        codec, text = make_codec(config.codec), make_encoder(config.text)
        settings = {
            "format": FORMAT,
            "source": config.path,
            "codec": codec.signature,
            "latent_channels": codec.channels,
            "temporal_stride": codec.temporal_stride,
            "spatial_stride": codec.spatial_stride,
            "text": text.signature,
            "text_dim": text.dim,
            "max_pixels": config.max_pixels,
            "max_frames": config.max_frames,
            "size_multiple": spec.size_multiple,
            "frame_step": spec.temporal_stride * spec.patch[0],
            "frame_limit": spec.max_frames,
        }
        _check_spec(settings, spec, f"codec {codec.signature}")
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=4).hexdigest()
        label = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.path).stem).strip("-.") or "data"
        folder = Path(config.cache) / f"{label}-{digest}"
        return cls(config, spec, codec, text, settings, folder, Quarantine(folder), threading.Lock())

    def file_of(self, item: Item) -> str:
        return f"{item.id}.{item.key()}{SUFFIX}"

    def find_done(self, listing: Listing) -> list[Entry]:
        """Entries that an earlier encoding wrote for the files as they are now."""
        listed = {entry.file: entry for entry in read_listing(self.folder)}
        found = []
        for item in listing.items:
            name = self.file_of(item)
            if not (self.folder / name).is_file():
                continue
            found.append(listed.get(name) or read_entry(self.folder, name))
        return found

    def encode_item(self, item: Item, decoder: Decoder) -> Entry | Refused:
        """Decodes, encodes and writes one item; a file that can't be used is a value, not an error."""
        limits = [limit for limit in (item.frames, self.config.max_frames) if limit is not None]
        wanted = min(limits, default=None)
        multiple = self.spec.size_multiple
        try:
            decoded = decoder.decode(item.path, item.start, wanted, self.config.max_pixels, multiple)
            there = len(decoded.frames_FHWC)
            if item.frames is not None and not decoded.more and there < (wanted or 0):
                raise DataError(f"it has {there} frames from {item.start}, the manifest says {item.frames}")
            used = self.spec.frame_rule(there)
            with self.lock:
                latents_CFHW = self.codec.encode(decoded.frames_FHWC[:used])
                text_LD = self.text.encode(item.caption)
                caption_tokens = self.text.count(item.caption)
            rule = fit(decoded.source_height, decoded.source_width, self.config.max_pixels, multiple)
            channels, frames, height, width = latents_CFHW.shape
            entry = Entry(
                id=item.id,
                media="image" if frames == 1 else "video",
                latent_shape=(channels, frames, height, width),
                text_tokens=len(text_LD),
                weight=item.weight,
                file=self.file_of(item),
                source=str(item.path),
                source_width=decoded.source_width,
                source_height=decoded.source_height,
                source_frames=there if item.frames is None else item.frames,
                more=decoded.more and item.frames is None,
                width=rule.width,
                height=rule.height,
                scaled=rule.scaled_height < decoded.source_height,
                frames=used,
                caption=item.caption,
                caption_tokens=caption_tokens,
            )
            write_entry(self.folder, entry, latents_CFHW, text_LD)
        except DataError as fault:
            return Refused(item.id, str(item.path), item.key(), str(fault))
        return entry

    def check_corrupt(self, refused: list[Refused], listing: Listing) -> None:
        """Raises DataError when too many files, or all of them, can't be used."""
        share, total = len(refused) / len(listing.items), len(listing.items)
        if share <= self.config.max_corrupt and len(refused) < total:
            return
        shown = "\n".join(f"  {row.file}: {row.reason}" for row in refused[:_SHOWN])
        if len(refused) == total:
            raise DataError(f"no readable file in data source {self.config.path}, {total} tried:\n{shown}")
        raise DataError(
            f"{len(refused)} of {total} files of {self.config.path} can't be used ({share:.0%}), above "
            f"data.max_corrupt {self.config.max_corrupt:g}; mend or remove them, or raise it:\n{shown}"
        )


def _encode_all(run: _Encoding, todo: list[Item]) -> Generator[Entry | Refused, None, None]:
    """Results as they come; a fault, an interrupt or a closed generator stops the decoders and drops what is left."""
    size = min(MAX_DECODERS, os.cpu_count() or 1, len(todo))
    with _decoders() as (mine, interrupt), ThreadPoolExecutor(size, thread_name_prefix="encode") as pool:
        futures: list[Future[Entry | Refused]] = [pool.submit(_encode_one, run, item, mine) for item in todo]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            interrupt()
            raise


def _encode_one(run: _Encoding, item: Item, decoder: Callable[[], Decoder]) -> Entry | Refused:
    return run.encode_item(item, decoder())


@contextmanager
def _decoders() -> Iterator[tuple[Callable[[], Decoder], Callable[[], None]]]:
    """Two functions: one gives each thread its own decoder, one stops them all."""
    local, all_of_them = threading.local(), list[Decoder]()

    def mine() -> Decoder:
        if not hasattr(local, "decoder"):
            local.decoder = Decoder()
            all_of_them.append(local.decoder)
        decoder: Decoder = local.decoder
        return decoder

    def interrupt() -> None:
        for decoder in all_of_them:
            decoder.interrupt()

    try:
        yield mine, interrupt
    finally:
        for decoder in all_of_them:
            decoder.close()


def _listing(config: DataConfig, progress: Progress) -> Listing:
    if config.path == "mini":
        return list_source(mini.fetch(Path(config.cache).parent / "mini", progress=progress))
    source = Path(config.path)
    if not source.exists():
        raise DataError(
            f"data source {source} does not exist; data.source is `mini`, a folder, a manifest or a latent cache"
        )
    return list_source(source)


def _check_spec(settings: dict[str, Any], spec: ModelSpec, whose: str) -> None:
    wanted = {
        "latent_channels": spec.latent_channels,
        "temporal_stride": spec.temporal_stride,
        "spatial_stride": spec.spatial_stride,
    }
    for key, value in wanted.items():
        if settings[key] != value:
            raise DataError(
                f"{whose} has {key} {settings[key]}, model {spec.name} takes {value}; change data.codec or model.name"
            )


def _silent(name: str, done: int, total: int) -> None:
    """Tells nobody."""
