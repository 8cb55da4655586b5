"""What a worker says of itself when it arrives: which model it built, how much memory it may fill."""

from __future__ import annotations

import hashlib
import os

import torch

from zellige_ray.config import RunConfig


def model_hash(module: torch.nn.Module) -> str:
    """Of the names, shapes and types of all parameters and buffers: equal where the state can be taken over."""
    rows = [f"{name} {tuple(t.shape)} {t.dtype}" for name, t in module.state_dict().items()]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def memory_bytes(device: torch.device) -> int:
    """Memory of a device; the machine's own for a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def torch_workers(config: RunConfig) -> int:
    """Workers that share this machine's memory, at most."""
    return config.workers.count if isinstance(config.workers.count, int) else max(1, os.cpu_count() or 1)
