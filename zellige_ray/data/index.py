"""The index: what the driver knows of every sample, which is its id and its shapes."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from zellige_ray.errors import DataError
from zellige_ray.words import counted

Media = Literal["image", "video"]
LatentShape = tuple[int, int, int, int]  # channels, frames, height, width
MEDIA: tuple[Media, ...] = ("image", "video")


@dataclass(frozen=True, slots=True)
class SampleMeta:
    """One encoded sample, without its tensors.

    latent_shape: (C, F, H, W). media: `image` when F is 1, whatever the file was. text_tokens: rows of the caption.
    weight: factor of its loss. file: the latent's path inside its cache folder, or a whole one.
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
    """Every sample of a data set, in the order of their ids; or of several, whose names then begin the ids.

    ratios: of a mixture, by data set, in the order of names; empty for one data set.
    """

    samples: tuple[SampleMeta, ...]
    ratios: tuple[tuple[str, float], ...] = ()

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

    @classmethod
    def mixed(cls, parts: Mapping[str, Index], ratios: Mapping[str, float]) -> Index:
        """The index of a mixture. parts, ratios: by the names of its data sets."""
        samples = [replace(s, id=f"{name}/{s.id}") for name, part in parts.items() for s in part.samples]
        return cls(cls.of(samples).samples, tuple(sorted(ratios.items())))

    def parts(self) -> dict[str, Index]:
        """The data sets of a mixture by name, ids as they are here; this index itself under no name if there is one."""
        if not self.ratios:
            return {"": self}
        found: dict[str, list[SampleMeta]] = {name: [] for name, _ in self.ratios}
        for sample in self.samples:
            found[data_set_of(sample.id)].append(sample)
        return {name: Index(tuple(samples)) for name, samples in found.items()}

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids in ascending order."""
        return tuple(sample.id for sample in self.samples)

    @property
    def fingerprint(self) -> str:
        """sha256 over ids, media, shapes, weights and ratios: equal when two runs may share batches."""
        digest = hashlib.sha256()
        for name, ratio in self.ratios:
            digest.update(f"{name}\t{ratio!r}\n".encode())
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
        Of a mixture, each data set gives its ratio's share. Raises DataError when nothing would be left to train on, of
        any data set.
        """
        if self.ratios:
            places = _apportion(held_out, dict(self.ratios))
            halves = [part.split(places[name], seed) for name, part in self.parts().items()]
            mixed = Index.of(s for train, _ in halves for s in train.samples)
            return replace(mixed, ratios=self.ratios), Index.of(s for _, held in halves for s in held.samples)
        if held_out < 0 or held_out >= len(self):
            raise DataError(
                f"{counted(len(self), 'sample')} can't give {held_out} held-out ones and something to train on; "
                "lower data.held_out or add samples"
            )
        groups = {media: [s for s in self.samples if s.media == media] for media in MEDIA}
        quota = _quotas({media: len(group) for media, group in groups.items()}, held_out)
        chosen: set[str] = set()
        for media, group in groups.items():
            drawn = sorted(group, key=lambda s: (stable_hash("held-out", seed, s.id), s.id))
            chosen.update(s.id for s in drawn[: quota[media]])
        return (
            Index(tuple(s for s in self.samples if s.id not in chosen)),
            Index(tuple(s for s in self.samples if s.id in chosen)),
        )

    def shapes(self) -> list[tuple[LatentShape, int]]:
        """Latent shapes with their counts, most frequent first."""
        return sorted(Counter(s.latent_shape for s in self.samples).items(), key=lambda item: (-item[1], item[0]))


def data_set_of(sample_id: str) -> str:
    """The data set of a mixture's sample."""
    return sample_id.partition("/")[0]


def _quotas(counts: dict[Media, int], wanted: int) -> dict[Media, int]:
    images, total = counts["image"], sum(counts.values())
    of_images = (2 * wanted * images + total) // (2 * total)
    if wanted >= 2 and min(counts.values()) >= 2:
        of_images = min(max(of_images, 1), wanted - 1)
    of_images = min(max(of_images, wanted - counts["video"]), images)
    return {"image": of_images, "video": wanted - of_images}


def _apportion(places: int, ratios: Mapping[str, float]) -> dict[str, int]:
    """Places by largest remainders, ties by name."""
    total = sum(ratios.values())
    exact = {name: places * ratio / total for name, ratio in ratios.items()}
    found = {name: int(value) for name, value in exact.items()}
    left = places - sum(found.values())
    for name in sorted(exact, key=lambda name: (found[name] - exact[name], name))[:left]:
        found[name] += 1
    return found


def stable_hash(*parts: object) -> int:
    """64 bits that depend on the parts' text alone: the same in every process and version."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
