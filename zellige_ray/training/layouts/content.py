"""Contents: what a rank holds of one unit, as flat vectors and counters, whoever computes with it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

WEIGHT, EMA = "weight", "ema"  # kinds of vectors; all others are the optimizer's


@dataclass(frozen=True, slots=True)
class Content:
    """A rank's interval of each kind of vector, and the optimizer's counters."""

    vectors: dict[str, Tensor]
    counters: dict[str, float]
