"""The latent cache: one readable .safetensors file per sample, written once, read by any number of workers.

Files are never changed: other pixels, another caption or other settings make another name, so a cache may be filled by
one run while others read it. Indexing reads headers only. Shape suffixes: C channels, F frames, H rows, W columns,
L caption tokens, D embedding width.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zellige_ray.data.atomic import replace_file
from zellige_ray.data.index import Index, LatentShape, Media, SampleMeta
from zellige_ray.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

FORMAT = "zellige.latents/1"
SUFFIX = ".safetensors"
SETTINGS = "settings.json"
INDEX = "index.jsonl"
_MAX_HEADER_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Entry:
    """One latent file by its header: the sample, where it came from, and what was left out.

    source_frames: frames that were there to use; `more` when the file goes on behind data.max_frames. caption_tokens:
    before any cut. scaled: made smaller, not only cropped. file: path inside the cache folder.
    """

    id: str
    media: Media
    latent_shape: LatentShape
    text_tokens: int
    weight: float
    file: str
    source: str
    source_width: int
    source_height: int
    source_frames: int
    more: bool
    width: int
    height: int
    scaled: bool
    frames: int
    caption: str
    caption_tokens: int

    @property
    def meta(self) -> SampleMeta:
        """The sample as the index knows it."""
        return SampleMeta(self.id, self.media, self.latent_shape, self.text_tokens, self.weight, self.file)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Entry:
        """The entry of plain values. Raises KeyError, TypeError or ValueError for anything else."""
        channels, frames, height, width = map(int, value["latent_shape"])
        return cls(**{**value, "latent_shape": (channels, frames, height, width)})


@dataclass(frozen=True, slots=True)
class LatentCache:
    """A folder of encoded samples; `files` restricts it to those of one data source, None takes all."""

    folder: Path
    files: tuple[str, ...] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """How it was encoded: codec, text encoder, size rules. Raises DataError when that can't be read."""
        path = self.folder / SETTINGS
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as fault:
            raise DataError(f"{self.folder} is no latent cache: {path.name} can't be read: {fault}") from fault
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise DataError(f"{path} is not of format {FORMAT}; encode the data again with this version")
        return value

    @property
    def codec_name(self) -> str:
        """Signature of the codec whose latents these are."""
        return str(self.settings["codec"])

    @property
    def text_dim(self) -> int:
        """Width of the caption embeddings."""
        return int(self.settings["text_dim"])

    def entries(self) -> list[Entry]:
        """Every sample by its header, in no order. Raises DataError for a file that is not whole."""
        listed = {entry.file: entry for entry in read_listing(self.folder)}
        names = self.files if self.files is not None else tuple(listed) or _all_files(self.folder)
        return [listed.get(name) or read_entry(self.folder, name) for name in names]

    def index(self) -> Index:
        """All samples by id, without reading a tensor. Raises DataError when there is none."""
        index = Index.of(entry.meta for entry in self.entries())
        if not len(index):
            raise DataError(f"latent cache {self.folder} is empty; run `zellige encode` on the media first")
        return index

    def read(self, meta: SampleMeta) -> tuple[Tensor, Tensor]:
        """(`latents_CFHW`, `text_LD`) in float32. Raises DataError for a file that can't be read."""
        import torch

        with self._opened(meta) as file:
            latents, text = file.get_tensor("latents"), file.get_tensor("text")
        return torch.from_numpy(latents).float(), torch.from_numpy(text).float()

    def read_frames(self, meta: SampleMeta, start: int, stop: int) -> Tensor:
        """`latents_CFHW` of the latent frames [start, stop), reading no others."""
        import torch

        with self._opened(meta) as file:
            return torch.from_numpy(file.get_slice("latents")[:, start:stop]).float()

    def read_text(self, meta: SampleMeta) -> Tensor:
        """`text_LD` alone."""
        import torch

        with self._opened(meta) as file:
            return torch.from_numpy(file.get_tensor("text")).float()

    def caption(self, meta: SampleMeta) -> str:
        """The caption that `text_LD` was made of."""
        return read_entry(self.folder, meta.file).caption

    def _opened(self, meta: SampleMeta) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(self.folder / meta.file, framework="numpy")
        except (OSError, SafetensorError) as fault:
            raise DataError(
                f"latents of sample {meta.id!r} can't be read from {self.folder / meta.file}: {fault}"
            ) from fault


def write_entry(folder: Path, entry: Entry, latents_CFHW: NDArray[np.float32], text_LD: NDArray[np.float32]) -> None:
    """Writes one sample in float16; the file appears when it is complete and on the disk.

    Raises DataError for latents that are not finite in float16, and for a disk that refuses.
    """
    import numpy as np
    from safetensors.numpy import save

    with np.errstate(over="ignore"):
        tensors = {"latents": latents_CFHW.astype(np.float16), "text": text_LD.astype(np.float16)}
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise DataError(f"its {name} are not finite in float16")
    header = {key: json.dumps(value) for key, value in entry.to_json().items() if key not in ("latent_shape", "file")}
    replace_file(folder / entry.file, save(tensors, metadata={"format": FORMAT, **header}))


def read_entry(folder: Path, name: str) -> Entry:
    """The entry of one file, from its header. Raises DataError when the file is not whole or not ours."""
    path = folder / name
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size, _MAX_HEADER_BYTES):
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        facts = header.pop("__metadata__")
        if facts.pop("format") != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        if size != 8 + length + max(tensor["data_offsets"][1] for tensor in header.values()):
            raise ValueError("it is cut off")
        values = {key: json.loads(value) for key, value in facts.items()}
        return Entry.from_json({**values, "file": name, "latent_shape": header["latents"]["shape"]})
    except (OSError, ValueError, KeyError, TypeError, struct.error) as fault:
        raise DataError(f"{path} is no latent file of this version: {fault}; delete it and encode again") from fault


def read_listing(folder: Path) -> list[Entry]:
    """The entries that the last complete encoding listed; empty when there is no listing."""
    path = folder / INDEX
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [Entry.from_json(json.loads(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise DataError(f"{path} can't be read: {fault}; delete it and encode again") from fault


def write_listing(folder: Path, entries: Iterable[Entry]) -> None:
    """Lists the samples of a complete encoding, so that the next start opens no file of them."""
    lines = [json.dumps(entry.to_json(), separators=(",", ":")) for entry in entries]
    replace_file(folder / INDEX, "".join(f"{line}\n" for line in lines).encode())


def _all_files(folder: Path) -> tuple[str, ...]:
    return tuple(
        sorted(path.relative_to(folder).as_posix() for path in folder.rglob(f"*{SUFFIX}") if path.name[0] != ".")
    )
