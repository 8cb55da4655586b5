"""The `flash` kernel: the flash-attn package (FlashAttention 2); CUDA only, deterministic backward on request.

Written from flash-attn 2.8's public sources; not run by us for want of a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zellige_ray.attention.kernels.cumulative import calls
from zellige_ray.attention.kernels.varlen import check_half_on_cuda
from zellige_ray.attention.segments import Segments
from zellige_ray.errors import EngineError


class FlashKernel:
    """`_flash_attn_varlen_forward` and `_backward`, which the package's own autograd function calls."""

    name = "flash"

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
        check_half_on_cuda(self.name, device, dtype, head_dim)
        _interface()

    def forward(
        self, q_QND: Tensor, k_KND: Tensor, v_KND: Tensor, segments: Segments, out_QND: Tensor, deterministic: bool
    ) -> Tensor:
        lse_NQ = q_QND.new_empty((q_QND.shape[1], q_QND.shape[0]), dtype=torch.float32)
        for call in calls(segments, q_QND.device):
            o, lse, _, _ = _interface()._flash_attn_varlen_forward(
                q_QND[call.q0 : call.q1],
                k_KND[call.k0 : call.k1],
                v_KND[call.k0 : call.k1],
                call.cu_q,
                call.cu_k,
                call.max_q,
                call.max_k,
                dropout_p=0.0,
                softmax_scale=q_QND.shape[-1] ** -0.5,
                causal=False,
            )
            out_QND[call.q0 : call.q1] = o
            lse_NQ[:, call.q0 : call.q1] = lse
        return lse_NQ.T

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
        dq, dk, dv = outs
        for call in calls(segments, q_QND.device):
            queries, keys = slice(call.q0, call.q1), slice(call.k0, call.k1)
            _interface()._flash_attn_varlen_backward(
                grad_QND[queries].contiguous(),
                q_QND[queries],
                k_KND[keys],
                v_KND[keys],
                o_QND[queries],
                lse_QN[queries].T.contiguous(),
                dq[queries],
                dk[keys],
                dv[keys],
                call.cu_q,
                call.cu_k,
                call.max_q,
                call.max_k,
                dropout_p=0.0,
                softmax_scale=q_QND.shape[-1] ** -0.5,
                causal=False,
                window_size_left=-1,
                window_size_right=-1,
                softcap=0.0,
                alibi_slopes=None,
                deterministic=deterministic,
            )


def _interface() -> Any:
    try:
        import flash_attn.flash_attn_interface as interface
    except ImportError as fault:
        raise EngineError(
            f"kernel flash needs the package flash-attn: pip install 'zellige-ray[gpu]' ({fault})"
        ) from fault
    return interface
