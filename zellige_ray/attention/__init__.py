"""Attention: layout of a plan on one rank, exchange, kernels, engine. Lazy: importing the room loads no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zellige_ray.attention.clock import PhaseClock
    from zellige_ray.attention.comm import Comm
    from zellige_ray.attention.engine import AttentionEngine
    from zellige_ray.attention.kernels import kernels
    from zellige_ray.attention.layout import Piece, RankLayout, compile_layout
    from zellige_ray.attention.pending import Pending

_homes = {
    "AttentionEngine": "engine",
    "Comm": "comm",
    "Pending": "pending",
    "PhaseClock": "clock",
    "Piece": "layout",
    "RankLayout": "layout",
    "compile_layout": "layout",
    "kernels": "kernels",
}


def __getattr__(name: str) -> Any:
    if name not in _homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_homes[name]}"), name)


__all__ = ["AttentionEngine", "Comm", "Pending", "PhaseClock", "Piece", "RankLayout", "compile_layout", "kernels"]
