"""The index: what the driver knows of every sample, which is its id and its shapes."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from zellige_ray.errors import DataError

Media = Literal["image", "video"]
LatentShape = tuple[int, int, int, int]  # channels, frames, height, width
MEDIA: tuple[Media, ...] = ("image", "video")


@dataclass(frozen=True, slots=True)
class SampleMeta:
    """One encoded sample, without its tensors.

    latent_shape: (C, F, H, W). media: `image` when F is 1, whatever the file was. text_tokens: rows of the caption.
    weight: factor of its loss. file: the latent's path inside its cache folder.
    """

    id: str
    media: Media
    latent_shape: LatentShape
    text_tokens: int
    weight: float = 1.0
    file: str = ""

    def tokens(self, patch: tuple[int, int, int] = (1, 2, 2)) -> int:
        """Visual tokens under a patch (frames, height, width); a partial patch counts as one."""
        total = 1
        for size, step in zip(self.latent_shape[1:], patch, strict=True):
            total *= -(-size // step)
        return total


@dataclass(frozen=True, slots=True)
class Index:
    """Every sample of a data set, in the order of their ids."""

    samples: tuple[SampleMeta, ...]

    @classmethod
    def of(cls, samples: Iterable[SampleMeta]) -> Index:
        """The index of samples in any order. Raises DataError where two share an id."""
        ordered = sorted(samples, key=lambda sample: sample.id)
        for left, right in itertools.pairwise(ordered):
            if left.id == right.id:
                raise DataError(
                    f"sample id {left.id!r} is there twice: {left.file or '?'} and {right.file or '?'}; rename one"
                )
        return cls(tuple(ordered))

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids in ascending order."""
        return tuple(sample.id for sample in self.samples)

    @property
    def fingerprint(self) -> str:
        """sha256 over ids, media, shapes and weights: equal when two runs may share batches."""
        digest = hashlib.sha256()
        for s in self.samples:
            shape = "x".join(map(str, s.latent_shape))
            digest.update(f"{s.id}\t{s.media}\t{shape}\t{s.text_tokens}\t{s.weight!r}\n".encode())
        return digest.hexdigest()

    def count(self, media: Media) -> int:
        """Samples of one kind."""
        return sum(sample.media == media for sample in self.samples)

    def split(self, held_out: int, seed: int) -> tuple[Index, Index]:
        """(train, held out): as near to the data set's own share of images as whole samples allow.

        Both kinds are held out when there are two places and two of each kind. The choice is a function of (seed, ids).
        Raises DataError when nothing would be left to train on.
        """
        if held_out < 0 or held_out >= len(self):
            raise DataError(
                f"{len(self)} samples can't give {held_out} held-out ones and something to train on; "
                "lower data.held_out or add samples"
            )
        groups = {media: [s for s in self.samples if s.media == media] for media in MEDIA}
        quota = _quotas({media: len(group) for media, group in groups.items()}, held_out)
        chosen: set[str] = set()
        for media, group in groups.items():
            drawn = sorted(group, key=lambda s: (stable_hash("held-out", seed, s.id), s.id))
            chosen.update(s.id for s in drawn[: quota[media]])
        train = tuple(s for s in self.samples if s.id not in chosen)
        held = tuple(s for s in self.samples if s.id in chosen)
        return Index(train), Index(held)

    def shapes(self) -> list[tuple[LatentShape, int]]:
        """Latent shapes with their counts, most frequent first."""
        return sorted(Counter(s.latent_shape for s in self.samples).items(), key=lambda item: (-item[1], item[0]))


def _quotas(counts: dict[Media, int], wanted: int) -> dict[Media, int]:
    images, total = counts["image"], sum(counts.values())
    of_images = (2 * wanted * images + total) // (2 * total)
    if wanted >= 2 and min(counts.values()) >= 2:
        of_images = min(max(of_images, 1), wanted - 1)
    of_images = min(max(of_images, wanted - counts["video"]), images)
    return {"image": of_images, "video": wanted - of_images}


def stable_hash(*parts: object) -> int:
    """64 bits that depend on the parts' text alone: the same in every process and version."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
