"""The order of samples: one data set shuffled anew every pass, or several, each drawn by its ratio.

A data set of a mixture keeps passes of its own: it is walked from end to end, every sample once, before any of its
samples comes again. A drawn sample therefore carries the pass of its data set, `photos/cat@3`, so that a ledger shows
for each data set that a pass used every sample exactly once. A pass of the mixture is only a stretch: about as many
draws as there are samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Protocol

from zellige_ray.data.index import Index, Media, SampleMeta, stable_hash

_PHASES = 1 << 16
_MARK = "@"
_KEPT = 2  # passes


class Order(Protocol):
    """Samples pass by pass, as a function of (seed, pass): of nothing that happened before."""

    def of(self, pass_: int) -> tuple[SampleMeta, ...]:
        """The samples of one pass, in order; at least one."""


def make_order(index: Index, image_ratio: float | None, seed: int) -> Order:
    """The order of a data set, or of a mixture. image_ratio: of one data set, see `Shuffled`."""
    return Mixed(index, seed) if index.ratios else Shuffled(index, image_ratio, seed)


class Shuffled:
    """All samples of one data set, once each pass.

    Images and videos are shuffled apart and merged so that every window of the order holds the wanted share of images
    within one sample, until one kind is used up: `image_ratio`, or the data set's own share when it is None.
    """

    def __init__(self, index: Index, image_ratio: float | None, seed: int) -> None:
        self._index, self._share, self._seed = index, image_ratio, seed
        self._passes = lru_cache(maxsize=_KEPT)(self._merge)

    def of(self, pass_: int) -> tuple[SampleMeta, ...]:
        """All samples in the order of one pass."""
        return self._passes(pass_)

    def _merge(self, pass_: int) -> tuple[SampleMeta, ...]:
        images, videos = self._shuffle("image", pass_), self._shuffle("video", pass_)
        total = len(images) + len(videos)
        wanted = len(images) / total if self._share is None else self._share
        phase = stable_hash("phase", self._seed, pass_) % _PHASES / _PHASES
        merged: list[SampleMeta] = []
        used = 0
        for position in range(total):
            due = used < int(wanted * (position + 1) + phase)
            if (due and used < len(images)) or position - used == len(videos):
                merged.append(images[used])
                used += 1
            else:
                merged.append(videos[position - used])
        return tuple(merged)

    def _shuffle(self, media: Media, pass_: int) -> list[SampleMeta]:
        group = [s for s in self._index.samples if s.media == media]
        return sorted(group, key=lambda s: (stable_hash("order", self._seed, pass_, s.id), s.id))


class Mixed:
    """Several data sets, each drawn by its ratio: of two, in any n draws its share of n within one.

    Draw j of a data set is due at time (j + phase) / rate, where the rates sum to the number of all samples; a pass is
    what is due in one unit of time. Exact rationals, so that no pass drifts, however late.
    """

    def __init__(self, index: Index, seed: int) -> None:
        total = sum(Fraction(ratio) for _, ratio in index.ratios)
        self._rates = {name: len(index) * Fraction(ratio) / total for name, ratio in index.ratios}
        self._phases = {name: Fraction(stable_hash("mix", seed, name) % _PHASES, _PHASES) for name in self._rates}
        self._walks = {name: Shuffled(part, None, seed) for name, part in index.parts().items()}
        self._sizes = {name: len(part) for name, part in index.parts().items()}
        self._passes = lru_cache(maxsize=_KEPT)(self._draw)

    def of(self, pass_: int) -> tuple[SampleMeta, ...]:
        """The draws of one pass."""
        return self._passes(pass_)

    def _draw(self, pass_: int) -> tuple[SampleMeta, ...]:
        drawn = []
        for name, rate in self._rates.items():
            first, stop = (ceil(p * rate - self._phases[name]) for p in (pass_, pass_ + 1))
            late, pace = float(first + self._phases[name] - pass_ * rate), float(rate)
            drawn += [((late + j) / pace, name, sample) for j, sample in enumerate(self._stretch(name, first, stop))]
        return tuple(sample for _, _, sample in sorted(drawn, key=lambda one: one[:2]))

    def _stretch(self, name: str, first: int, stop: int) -> Sequence[SampleMeta]:
        """Draws [first, stop) of a data set's own walk."""
        size, walk = self._sizes[name], self._walks[name]
        found: list[SampleMeta] = []
        for own in range(first // size, -(-stop // size)):
            samples = walk.of(own)[max(0, first - own * size) : stop - own * size]
            found += [replace(sample, id=f"{sample.id}{_MARK}{own}") for sample in samples]
        return found


def as_held(drawn: str) -> tuple[str, int]:
    """(id in the index, pass of its data set) of a sample drawn from a mixture; of any other id itself and pass 0."""
    name, mark, own = drawn.rpartition(_MARK)
    return (name, int(own)) if mark and own.isdecimal() else (drawn, 0)
