"""Batches, passes and the mixing of images and videos."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zellige_ray.config import BatchConfig
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.sampler import Sampler, SamplerState, image_share
from zellige_ray.errors import DataError


def make_index(images: int, videos: int) -> Index:
    samples = [SampleMeta(f"i{n:03}", "image", (16, 1, 4 + n % 5, 6), n % 7) for n in range(images)]
    samples += [SampleMeta(f"v{n:03}", "video", (16, 2 + n % 9, 4, 6), n % 7) for n in range(videos)]
    return Index.of(samples)


def walk(sampler: Sampler, passes: int) -> list[tuple[SampleMeta, ...]]:
    found, state = [], SamplerState()
    while state.pass_ < passes:
        samples, state = sampler.batch(state)
        found.append(samples)
    return found


sizes = st.one_of(
    st.builds(lambda n: BatchConfig(samples=n), st.integers(1, 9)),
    st.builds(lambda n: BatchConfig(tokens=n), st.integers(1, 200)),
)
counts = st.tuples(st.integers(0, 25), st.integers(0, 25)).filter(lambda pair: sum(pair) > 0)


@given(counts, sizes, st.integers(0, 3))
def test_every_sample_is_in_exactly_one_batch_of_a_pass(pair: tuple[int, int], size: BatchConfig, seed: int) -> None:
    index = make_index(*pair)
    batches = walk(Sampler(index, size, seed), passes=3)
    used = Counter(sample.id for batch in batches for sample in batch)
    assert used == {sample: 3 for sample in index.ids}
    assert all(batches)


@given(counts, sizes)
def test_a_batch_never_exceeds_its_size_except_by_its_first_sample(pair: tuple[int, int], size: BatchConfig) -> None:
    for batch in walk(Sampler(make_index(*pair), size, 0), passes=2):
        if size.samples is not None:
            assert len(batch) <= size.samples
        else:
            assert size.tokens is not None
            assert len(batch) == 1 or sum(s.tokens() for s in batch) <= size.tokens


@given(counts, st.one_of(st.none(), st.floats(0, 1)), st.integers(0, 3))
def test_every_window_holds_the_wanted_share_until_one_kind_is_used_up(
    pair: tuple[int, int], ratio: float | None, seed: int
) -> None:
    index = make_index(*pair)
    order = Sampler(index, BatchConfig(samples=4, image_ratio=ratio), seed).order(1)
    wanted = pair[0] / sum(pair) if ratio is None else ratio
    media = [sample.media for sample in order]
    both = min(max(n for n, m in enumerate(media) if m == kind) if kind in media else -1 for kind in ("image", "video"))
    mixed = media[: both + 1]
    for start, stop in itertools.combinations(range(len(mixed) + 1), 2):
        images = mixed[start:stop].count("image")
        assert abs(images - wanted * (stop - start)) < 1 + 1e-9


def test_equal_shares_mix_in_every_batch_and_the_observed_share_is_known() -> None:
    batches = walk(Sampler(make_index(24, 24), BatchConfig(samples=6), 3), passes=2)
    assert [image_share(batch) for batch in batches] == [0.5] * len(batches)
    assert image_share(()) == 0.0


def test_order_changes_with_pass_and_seed_only() -> None:
    index = make_index(9, 9)
    one, again, other = (Sampler(index, BatchConfig(samples=4), seed) for seed in (1, 1, 2))
    assert one.order(0) == again.order(0)
    assert one.order(0) != one.order(1)
    assert one.order(0) != other.order(0)
    assert {s.id for s in one.order(0)} == {s.id for s in other.order(1)}


def test_a_state_through_json_continues_where_it_stood() -> None:
    sampler = Sampler(make_index(7, 6), BatchConfig(tokens=60), 0)
    expected = list(itertools.islice(sampler.batches(), 9))
    state = SamplerState.from_json(expected[3][1].to_json())
    fresh = Sampler(make_index(7, 6), BatchConfig(tokens=60), 0)
    assert list(itertools.islice(fresh.batches(state), 5)) == expected[4:]


def test_resume_on_another_data_set_names_both_fingerprints() -> None:
    saved, now = (
        Sampler(make_index(9, 9), BatchConfig(samples=4), 0),
        Sampler(make_index(2, 1), BatchConfig(samples=4), 0),
    )
    with pytest.raises(DataError, match=f"{saved.fingerprint[:16]}.*{now.fingerprint[:16]}"):
        now.check(saved.fingerprint)
    now.check(now.fingerprint)
    with pytest.raises(DataError, match="cursor 12 lies outside of a pass of 3 samples"):
        now.batch(SamplerState(0, 12))


def test_an_empty_index_and_a_broken_state_are_named_errors() -> None:
    with pytest.raises(DataError, match="empty"):
        Sampler(Index(()), BatchConfig(samples=1), 0)
    for value in ({}, {"pass_": 0, "cursor": "x"}, {"pass_": -1, "cursor": 0}):
        with pytest.raises(DataError, match="not a sampler state"):
            SamplerState.from_json(value)
