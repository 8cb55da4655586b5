"""The fingerprint of a loaded model's weights: other weights, other results of whatever was made with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_SAMPLES = 64


def weights_hash(module: Any) -> str:
    """8 digits over the state of a module, by `tensors_hash`."""
    return tensors_hash(module.state_dict())


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """8 digits over every tensor's name, shape and 64 evenly spaced values: fast, and changed by any training."""
    digest = hashlib.blake2b(digest_size=4)
    for name, value in sorted(tensors.items()):
        flat = value.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLES)
        sampled = flat[::step].to(device="cpu", dtype=torch.float64)
        digest.update(f"{name}{tuple(value.shape)}".encode() + sampled.numpy().tobytes())
    return digest.hexdigest()
