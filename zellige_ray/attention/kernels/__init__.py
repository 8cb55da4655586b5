"""Kernels: how scores are computed, behind one interface. A chosen kernel runs or raises; none falls back to another.

One file and one line in `kernels` per kernel. Legend: Q query rows, K key rows, N heads, D head dim.
"""

from __future__ import annotations

from zellige_ray.attention.kernels.flash import FlashKernel
from zellige_ray.attention.kernels.kernel import Kernel
from zellige_ray.attention.kernels.sdpa import SdpaKernel
from zellige_ray.attention.kernels.varlen import VarlenKernel
from zellige_ray.errors import EngineError

kernels: dict[str, Kernel] = {
    "sdpa": SdpaKernel(),
    "varlen": VarlenKernel(),
    "flash": FlashKernel(),
}


def get_kernel(name: str) -> Kernel:
    """The kernel of that name; EngineError names the known ones."""
    if name not in kernels:
        raise EngineError(f"unknown kernel {name!r}, known are {sorted(kernels)} (engine.kernel)")
    return kernels[name]


__all__ = ["Kernel", "get_kernel", "kernels"]
