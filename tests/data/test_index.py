"""The index and its split."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.errors import DataError


def make_index(images: int, videos: int) -> Index:
    samples = [SampleMeta(f"i{n:03}", "image", (16, 1, 4 + n % 5, 6), n % 7) for n in range(images)]
    samples += [SampleMeta(f"v{n:03}", "video", (16, 2 + n % 9, 4, 6), n % 7) for n in range(videos)]
    return Index.of(samples)


def test_tokens_of_the_users_facts_follow_from_latent_shapes() -> None:
    chelsea = SampleMeta("chelsea", "image", (16, 1, 36, 56), 0)
    clip = SampleMeta("wan", "video", (16, 21, 60, 104), 0)
    assert chelsea.tokens() == 504
    assert clip.tokens() == 32760
    assert SampleMeta("odd", "video", (16, 3, 5, 7), 0).tokens((2, 2, 2)) == 2 * 3 * 4


def test_two_samples_of_one_id_are_a_named_error() -> None:
    twins = [SampleMeta("a", "image", (16, 1, 2, 2), 0, file=name) for name in ("a.x", "a.y")]
    with pytest.raises(DataError, match=r"'a' is there twice: a\.x and a\.y"):
        Index.of(twins)


def test_fingerprint_ignores_order_and_sees_every_change() -> None:
    index = make_index(3, 3)
    assert Index.of(reversed(index.samples)).fingerprint == index.fingerprint
    changed = SampleMeta("i000", "image", (16, 1, 4, 8), 0)
    assert Index.of((changed, *index.samples[1:])).fingerprint != index.fingerprint
    assert Index(index.samples[1:]).fingerprint != index.fingerprint


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 20), st.integers(0, 5))
def test_split_holds_out_both_kinds_in_their_share(images: int, videos: int, held_out: int, seed: int) -> None:
    index = make_index(images, videos)
    if held_out >= images + videos:
        with pytest.raises(DataError, match="held_out"):
            index.split(held_out, seed)
        return
    train, held = index.split(held_out, seed)
    assert len(held) == held_out
    assert sorted(train.ids + held.ids) == sorted(index.ids)
    assert abs(held.count("image") - held_out * images / (images + videos)) <= 1
    if held_out >= 2 and images >= 2 and videos >= 2:
        assert held.count("image") and held.count("video")
    assert index.split(held_out, seed) == (train, held)


def test_the_drivers_part_loads_neither_torch_nor_av_nor_numpy() -> None:
    code = (
        "import sys, zellige_ray.data.index, zellige_ray.data.sampler, zellige_ray.data.ledger, zellige_ray.data.audit;"
        "print([m for m in ('torch', 'av', 'numpy', 'safetensors', 'ray') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
