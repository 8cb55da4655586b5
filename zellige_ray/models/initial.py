"""Initial weights: the same for the same seed on every rank, independent of torch's global random state."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def initialise(module: nn.Module, seed: int, zero: Sequence[str] = ()) -> None:
    """Linear and convolution weights Xavier-uniform, their biases 0, tables normal / sqrt(width); norms stay.

    zero: names of submodules whose weights start at 0 (a DiT's output). Parameters are visited in their order; drawn in
    float32.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, child in module.named_modules():
            if isinstance(child, nn.Linear | nn.Conv2d | nn.Conv3d):
                fan_out, fan_in = child.weight.shape[0], child.weight[0].numel()
                limit = math.sqrt(6 / (fan_in + fan_out))
                drawn = torch.rand(child.weight.shape, generator=generator) * (2 * limit) - limit
                _set(child.weight, torch.zeros_like(drawn) if name in zero else drawn)
                if child.bias is not None:
                    child.bias.zero_()
            elif isinstance(child, nn.Embedding):
                _set(child.weight, torch.randn(child.weight.shape, generator=generator) * 0.02)
            for parameter_name, parameter in child.named_parameters(recurse=False):
                if parameter_name.endswith("table"):
                    _set(parameter, torch.randn(parameter.shape, generator=generator) / math.sqrt(parameter.shape[-1]))


def _set(parameter: Tensor, value: Tensor) -> None:
    parameter.copy_(value.to(parameter.dtype))
