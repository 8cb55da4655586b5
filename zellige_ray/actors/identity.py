"""What a worker says of itself when it arrives: which model it built, how much memory it may fill."""

from __future__ import annotations

import hashlib
import os

import torch

from zellige_ray.config import RunConfig
from zellige_ray.training.live_bytes import resident_bytes


def model_hash(module: torch.nn.Module) -> str:
    """Of the names, shapes and types of all parameters and buffers: equal where the state can be taken over."""
    rows = [f"{name} {tuple(t.shape)} {t.dtype}" for name, t in module.state_dict().items()]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def memory_bytes(device: torch.device) -> int:
    """Memory of a device; the machine's own for a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def room_bytes(device: torch.device, config: RunConfig) -> int:
    """What one worker may fill with tensors: what the device has left, or less where workers.memory_bytes says so.

    Workers share a CPU's memory evenly, each less what its process has already.
    """
    if device.type == "cuda":
        room = int(torch.cuda.mem_get_info(device)[0])
    else:
        room = max(1, memory_bytes(device) // torch_workers(config) - resident_bytes())
    limit = config.workers.memory_bytes
    return room if limit is None else min(room, limit)


def torch_workers(config: RunConfig) -> int:
    """Workers that share this machine's memory, at most."""
    return config.workers.count if isinstance(config.workers.count, int) else max(1, os.cpu_count() or 1)
