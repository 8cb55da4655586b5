"""Activation checkpointing of a model's blocks, in lock step over ranks.

`full`: recomputation repeats a block's exchanges. `attention`: the attention layers' results are kept (outputs of this
rank's tokens, operands and outputs of its tiles), so that recomputation exchanges nothing and runs no self-attention
kernel.

Early stopping is off: a rank whose last saved tensor comes before an exchange must run that exchange nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from zellige_ray.attention.layer import Memo

Enter = Callable[[], AbstractContextManager[None]]


def install(block: nn.Module, remember: Callable[[], Enter]) -> None:
    """Give one block a checkpointed `forward`. remember: called at the first run; every run enters its result."""
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


class Tape:
    """The memos of one run of a block, in the order of its attention layers; rewound for its recomputation."""

    def __init__(self) -> None:
        self._memos: list[Memo] = []
        self._at = 0

    def rewind(self) -> None:
        self._at = 0

    def take(self) -> Memo:
        if self._at == len(self._memos):
            self._memos.append(Memo())
        self._at += 1
        return self._memos[self._at - 1]
