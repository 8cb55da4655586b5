"""Activation checkpointing of a model's blocks, in lock step over ranks: recomputation repeats a block's exchanges.

Early stopping is off: a rank whose last saved tensor comes before an exchange must run that exchange nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

Enter = Callable[[], AbstractContextManager[None]]


def install(block: nn.Module, remember: Callable[[], Enter]) -> None:
    """Give one block a checkpointed `forward`. remember: called at the first run; what it returns is entered at every run."""
    original = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*args, **kwargs)
        enter = remember()

        def run(*args: Any) -> Any:
            with enter():
                return original(*args, **kwargs)

        with set_checkpoint_early_stop(False):
            return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False)

    block.forward = forward
