"""Out of memory: telling an allocator that has nothing left from every other fault."""

from __future__ import annotations

import gc

import torch

CPU_ALLOCATOR = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory")


def out_of_memory(fault: BaseException) -> str | None:
    """What the allocator of the CPU, of numpy or of CUDA said, in one line; None for another fault."""
    text = next((line.strip() for line in str(fault).splitlines() if line.strip()), type(fault).__name__)
    if isinstance(fault, MemoryError | torch.OutOfMemoryError):
        return text
    if isinstance(fault, RuntimeError) and any(word in str(fault) for word in CPU_ALLOCATOR):
        return text
    return None


def let_go(device: torch.device) -> None:
    """Frees what a broken step left: cycles that hold tensors, and what CUDA's allocator keeps for later."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
