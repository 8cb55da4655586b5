"""Determinism: torch's fused attention backwards on CUDA have a deterministic mode, behind one process-wide switch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic_ops(wanted: bool) -> Iterator[None]:
    """The switch, on for what runs inside where `wanted`, and as it was afterwards.

    Source: aten's `_flash_attention_backward` and `_efficient_attention_backward` read `deterministicAlgorithms()`, and
    take the deterministic path only where it is not `warn_only`.
    """
    before, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    if not wanted or (before and not warn_only):
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
