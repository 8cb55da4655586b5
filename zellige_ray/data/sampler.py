"""The sampler: which samples the next global batch holds, whatever the number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from zellige_ray.config import BatchConfig
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.order import make_order
from zellige_ray.errors import DataError


@dataclass(frozen=True, slots=True)
class SamplerState:
    """Where a walk stands: `cursor` samples of pass `pass_` are used."""

    pass_: int = 0
    cursor: int = 0

    def to_json(self) -> dict[str, int]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SamplerState:
        """The state of plain values. Raises DataError for anything but two counts."""
        try:
            state = cls(int(value["pass_"]), int(value["cursor"]))
        except (KeyError, TypeError, ValueError) as fault:
            raise DataError(f"not a sampler state: {value!r}") from fault
        if min(state.pass_, state.cursor) < 0:
            raise DataError(f"not a sampler state, a count is negative: {value!r}")
        return state


class Sampler:
    """Global batches as a pure function of (seed, pass, index).

    Batches are consecutive slices of a pass, whose last batch may be short. A pass over one data set is an order of all
    its samples, so every sample is in exactly one batch of it; in a mixture that holds for each data set's own passes,
    see `zellige_ray.data.order`. A batch by tokens ends before the sample that would exceed it; its first sample always
    fits.
    """

    def __init__(
        self, index: Index, batch: BatchConfig, seed: int, tokens: Callable[[SampleMeta], int] = SampleMeta.tokens
    ) -> None:
        if not len(index):
            raise DataError("no sample to draw from: the data set is empty; check data.source and data.held_out")
        self.index = index
        self.fingerprint = index.fingerprint
        self._batch = batch
        self._seed = seed
        self._tokens = tokens
        self._order = make_order(index, batch.image_ratio, seed)

    def batch(self, state: SamplerState) -> tuple[tuple[SampleMeta, ...], SamplerState]:
        """The batch at `state`, and the state behind it. Raises DataError when the cursor lies outside of the pass."""
        order = self.order(state.pass_)
        if not 0 <= state.cursor < len(order):
            raise DataError(
                f"sampler cursor {state.cursor} lies outside of a pass of {len(order)} samples: the state is of "
                "another data set; start a new run, or restart the pass"
            )
        stop = self._stop(order, state.cursor)
        after = SamplerState(state.pass_, stop) if stop < len(order) else SamplerState(state.pass_ + 1, 0)
        return order[state.cursor : stop], after

    def batches(self, state: SamplerState | None = None) -> Iterator[tuple[tuple[SampleMeta, ...], SamplerState]]:
        """Batches from `state` on, without end, each with the state behind it."""
        state = state or SamplerState()
        while True:
            samples, state = self.batch(state)
            yield samples, state

    def order(self, pass_: int) -> tuple[SampleMeta, ...]:
        """The samples of one pass, in order."""
        return self._order.of(pass_)

    def check(self, fingerprint: str) -> None:
        """Raises DataError when a saved run saw another data set, so that its cursor would mean nothing here."""
        if fingerprint != self.fingerprint:
            raise DataError(
                f"the data set has changed: the run was saved with fingerprint {fingerprint[:16]}, this one is "
                f"{self.fingerprint[:16]} ({len(self.index)} samples); restore the data, or start a new run from its "
                "weights"
            )

    def _stop(self, order: tuple[SampleMeta, ...], start: int) -> int:
        if self._batch.samples is not None:
            return min(start + self._batch.samples, len(order))
        limit = self._batch.tokens
        assert limit is not None  # BatchConfig sets exactly one of both
        total, stop = self._tokens(order[start]), start + 1
        while stop < len(order) and total + self._tokens(order[stop]) <= limit:
            total += self._tokens(order[stop])
            stop += 1
        return stop


def image_share(samples: Iterable[SampleMeta]) -> float:
    """Observed share of images; 0.0 of nothing."""
    media = [sample.media for sample in samples]
    return media.count("image") / len(media) if media else 0.0
