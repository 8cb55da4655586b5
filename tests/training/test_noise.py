"""Noise belongs to a sample, not to a rank: any slice equals the slice of the whole."""

import numpy as np
import pytest

from zellige_ray.config import LossConfig
from zellige_ray.training.noise import BLOCK_TOKENS, timestep, token_noise


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 700), (255, 257), (256, 512), (511, 513), (300, 300)])
def test_a_slice_of_the_noise_equals_the_slice_of_the_whole(start: int, stop: int) -> None:
    whole = token_noise(3, 1, "clip", 0, 700, 5)
    assert np.array_equal(token_noise(3, 1, "clip", start, stop, 5), whole[start:stop])


def test_noise_is_standard_normal_and_its_blocks_differ() -> None:
    drawn = token_noise(0, 0, "a", 0, 4 * BLOCK_TOKENS, 64)
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.01
    assert abs(np.corrcoef(drawn[:BLOCK_TOKENS].ravel(), drawn[BLOCK_TOKENS : 2 * BLOCK_TOKENS].ravel())[0, 1]) < 0.03


def test_noise_differs_between_seeds_passes_and_samples() -> None:
    draws = [
        token_noise(s, p, i, 0, 2, 4).tobytes() for s, p, i in [(0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b")]
    ]
    assert len(set(draws)) == 4


def test_timesteps_are_inside_zero_and_one_and_shift_moves_them_towards_noise() -> None:
    plain = [timestep(0, 0, f"s{i}", LossConfig()) for i in range(400)]
    shifted = [timestep(0, 0, f"s{i}", LossConfig(shift=3.0)) for i in range(400)]
    assert min(plain) > 0 and max(plain) < 1
    assert abs(np.mean(plain) - 0.5) < 0.03
    assert all(s == pytest.approx(3 * t / (1 + 2 * t)) for s, t in zip(shifted, plain, strict=True))


def test_a_timestep_is_the_same_in_every_process() -> None:
    assert timestep(7, 2, "chelsea", LossConfig()) == pytest.approx(0.4078859414567199, rel=1e-12)
