"""From timings to curves: what was planted in the timings of blocks is found again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.placement.simulated import simulated_curves
from zellige_ray.placement import ModelPreset
from zellige_ray.training.profile_blocks import BlockTimes, Shape
from zellige_ray.training.profile_fits import in_place

HEADS, BESIDE_S = 4, 2e-4
WHOLE = simulated_curves().whole


def layers(seconds: float) -> list[BlockTimes]:
    return [BlockTimes(0, 0, 0, 0, 0, attention_s=seconds, exchange_s=0, round_s=0)] * 3


@pytest.mark.parametrize("text", ["joint", "cross"])
@pytest.mark.parametrize(("checkpointing", "passes"), [("none", 2), ("full", 3)])
def test_colder_kernels_and_what_is_beside_them_are_found_again(text: Any, checkpointing: Any, passes: int) -> None:
    joint, model = text == "joint", ModelPreset("m", 3, 128, HEADS, 4.0, text, 4, checkpointing)
    blocks = {}
    for tokens in (16, 256, 1024, 2048):
        shape = Shape(1, tokens)
        length = tokens + (shape.text if joint else 0)
        segments = [(HEADS, length, length)] + ([] if joint else [(HEADS, tokens, shape.text)])
        forward_s, backward_s = WHOLE.seconds(segments, len(segments))
        colder = 1.1 if tokens > 256 else 1.0
        blocks[shape] = layers(colder * ((passes - 1) * forward_s + backward_s) + passes * BESIDE_S)
    blocks |= {Shape(4, 64): layers(9.0), Shape(1, 128, 64): layers(9.0)}  # not single pieces with the usual caption
    kernels, beside_s = in_place(blocks, WHOLE, model)
    assert beside_s == pytest.approx(BESIDE_S)
    at = np.array([300.0]), np.array([500.0])
    assert kernels.forward(*at) == pytest.approx(1.1 * WHOLE.forward(*at), rel=1e-3)


def test_timings_below_what_is_beside_change_nothing() -> None:
    blocks = {Shape(1, 16): layers(1e-3), Shape(1, 256): layers(0.0)}
    kernels, _ = in_place(blocks, WHOLE, ModelPreset("m", 3, 128, HEADS, 4.0, "joint", 4, "none"))
    assert kernels == WHOLE
