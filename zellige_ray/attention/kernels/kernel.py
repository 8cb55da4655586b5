"""The kernel protocol: segmented attention, forward and backward, with the log-sum-exp that merging partial results
needs.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from zellige_ray.attention.segments import Segments


class Kernel(Protocol):
    """Attention of packed rows q_QND, k_KND, v_KND, each segment by itself; scores are scaled by 1 / sqrt(D)."""

    name: str

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
        """EngineError, with value and limit, where the kernel can't run such tensors."""
        ...

    def forward(
        self, q_QND: Tensor, k_KND: Tensor, v_KND: Tensor, segments: Segments, out_QND: Tensor, deterministic: bool
    ) -> Tensor:
        """Write the outputs, return the log-sum-exp of the scores [Q, N], float32 or wider."""
        ...

    def backward(
        self,
        grad_QND: Tensor,
        q_QND: Tensor,
        k_KND: Tensor,
        v_KND: Tensor,
        o_QND: Tensor,
        lse_QN: Tensor,
        segments: Segments,
        outs: tuple[Tensor, Tensor, Tensor],
        deterministic: bool,
    ) -> None:
        """Write the gradients of q, k and v into `outs`, each of them completely."""
        ...
