"""Optimizer state in blocks: quantised moments with a scale per block, which move whole, by parameter and kind.

A vector's interval would cut blocks, so layouts, moves and checkpoints that work on intervals leave it alone; where it
has to go, it goes as it is, bit for bit. Kinds are bitsandbytes' own: `state1`, `state2` (8-bit codes, or float32 for a
small parameter), `absmax1`, `absmax2` (scales of 256 elements), and `step`.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zellige_ray.config import OptimizerConfig
from zellige_ray.errors import ConfigError

Whole = Mapping[str, Mapping[str, Tensor]]  # by parameter, then kind

EPS = 1e-8
MARK = "state1"  # the kind that tells a saved state of blocks
_STEP = "step"
_STEPPING = threading.Lock()  # bitsandbytes' CPU kernels give other results where two threads are in them
_MOVED = ("state1", "state2", "absmax1", "absmax2")  # the code books, qmap1 and qmap2, are the same everywhere


def adamw8bit(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    """bitsandbytes' AdamW with moments of 8 bits. Raises ConfigError where it is not installed."""
    warnings.filterwarnings("ignore", message=".*torch.jit.script_method.*", category=DeprecationWarning)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # 4-bit kernels, which nothing here uses
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as fault:
        raise ConfigError(MISSING) from fault

    class OneAtATime(AdamW8bit):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            with _STEPPING:
                return super().step(closure)

    made: Optimizer = OneAtATime(
        list(parameters), lr=config.lr, betas=config.betas, eps=EPS, weight_decay=config.weight_decay
    )
    return made


MISSING = (
    "optimizer.name is adamw8bit, and bitsandbytes is not installed here: pip install 'zellige-ray[adamw8bit]', or set "
    "adamw"
)


def whole_of(optimizer: Any, pieces: Iterable[tuple[str, nn.Parameter]]) -> Whole:
    """The state of every parameter, as the optimizer holds it; zeros where it made no step yet, as it would itself."""
    return {name: _moved(_made(optimizer, p, number)) for number, (name, p) in enumerate(pieces)}


def restore(optimizer: Any, pieces: Iterable[tuple[str, nn.Parameter]], whole: Whole) -> None:
    """Gives a new optimizer such a state; the tensors are kept, not copied, where they are on the right device."""
    for number, (name, p) in enumerate(pieces):
        made = _made(optimizer, p, number)
        for kind, value in whole[name].items():
            made[kind] = int(value) if kind == _STEP else value.to(p.device)


def empty_like(whole: Whole) -> dict[str, dict[str, Tensor]]:
    """Room for another such state."""
    return {name: {kind: torch.empty_like(t) for kind, t in kinds.items()} for name, kinds in whole.items()}


def num_bytes(whole: Whole) -> int:
    """Bytes of it all."""
    return sum(t.numel() * t.element_size() for kinds in whole.values() for t in kinds.values())


def _made(optimizer: Any, parameter: nn.Parameter, number: int) -> dict[str, Any]:
    state: dict[str, Any] = optimizer.state[parameter]
    if not state:
        optimizer.init_state(optimizer.param_groups[0], parameter, 0, number)
        state = optimizer.state[parameter]
    return state


def _moved(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {k: state[k] for k in _MOVED if k in state} | {_STEP: torch.tensor([float(state[_STEP])])}
