"""What a rank is asked to measure, and what it answers: values that a driver without torch can hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scope:
    """max_tokens: of one rank in one round. nodes: of each rank. budget_s: of what ranks do for themselves."""

    max_tokens: int
    nodes: tuple[int, ...]
    budget_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """A short look at a device. device: its name. reference_s: one layer's token-wise work on REFERENCE_TOKENS."""

    device: str
    torch: str
    reference_s: float


REFERENCE_TOKENS, REFERENCE_TEXT = 256, 8
