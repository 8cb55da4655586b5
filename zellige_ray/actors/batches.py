"""Batches: what the sampler draws, without the samples that were found unreadable on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zellige_ray.config import RunConfig
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.order import as_held
from zellige_ray.data.record import QUARANTINED, Record
from zellige_ray.data.sampler import Sampler, SamplerState
from zellige_ray.errors import DataError


class Batches:
    """A batch goes on without a sample that no rank, or only some, can read: the rule is the driver's, so it is the
    same on every rank, and the others' weights divide by what is left."""

    def __init__(self, train: Index, config: RunConfig, tokens: Callable[[SampleMeta], int]) -> None:
        self.refused: set[str] = set()
        self._limit = config.data.max_corrupt
        self._sampler = Sampler(train, config.batch, config.seed, tokens)

    def at(self, state: SamplerState) -> tuple[tuple[SampleMeta, ...], SamplerState]:
        """The batch at `state`, or the next one that is not empty, and the state behind it."""
        while True:
            samples, state = self._sampler.batch(state)
            left = self.readable(samples)
            if left:
                return left, state

    def readable(self, samples: Iterable[SampleMeta]) -> tuple[SampleMeta, ...]:
        """Those that nobody failed to read."""
        return tuple(s for s in samples if self._held(s.id) not in self.refused)

    def refuse(self, ids: Iterable[str]) -> None:
        """Sets samples aside. Raises DataError when they are more than `data.max_corrupt` of all."""
        self.refused |= {self._held(i) for i in ids}
        total = len(self._sampler.index)
        share = sum(i in self.refused for i in self._sampler.index.ids) / total
        if share > self._limit:
            raise DataError(
                f"{share:.1%} of {total} samples can't be read, data.max_corrupt is {self._limit:.1%}; the last were "
                f"{', '.join(sorted(ids))}: encode them again, or raise the limit"
            )

    def recall(self, records: Iterable[Record]) -> None:
        """Sets aside what an earlier driver of this run set aside."""
        self.refused |= {self._held(r.detail) for r in records if r.event == QUARANTINED}

    def after(self, commit: Record) -> SamplerState:
        """The state behind a committed batch."""
        order = [s.id for s in self._sampler.order(commit.pass_)]
        stop = order.index(commit.sample_ids[-1]) + 1
        return SamplerState(commit.pass_, stop) if stop < len(order) else SamplerState(commit.pass_ + 1, 0)

    def _held(self, drawn: str) -> str:
        """The id in the index: in a mixture a sample is drawn under another in each pass of its data set."""
        return as_held(drawn)[0] if self._sampler.index.ratios else drawn
