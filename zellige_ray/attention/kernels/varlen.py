"""The `varlen` kernel: torch's variable-length flash attention (torch.nn.attention.varlen); CUDA only.

Written from torch 2.13's source; not run by us for want of a GPU. `num_splits=1` makes a segment's bits independent of
the others in the call; its backward is deterministic behind torch's own switch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zellige_ray.attention.kernels.cumulative import calls
from zellige_ray.attention.kernels.determinism import deterministic_ops
from zellige_ray.attention.segments import Segments
from zellige_ray.errors import EngineError

_aten = torch.ops.aten


class VarlenKernel:
    """FlashAttention 2 as built into torch."""

    name = "varlen"

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
        check_half_on_cuda(self.name, device, dtype, head_dim)

    def forward(
        self, q_QND: Tensor, k_KND: Tensor, v_KND: Tensor, segments: Segments, out_QND: Tensor, deterministic: bool
    ) -> Tensor:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn

        lse_NQ = q_QND.new_empty((q_QND.shape[1], q_QND.shape[0]), dtype=torch.float32)
        for call in calls(segments, q_QND.device):
            q, k, v = q_QND[call.q0 : call.q1], k_KND[call.k0 : call.k1], v_KND[call.k0 : call.k1]
            o, lse = varlen_attn(
                q,
                k,
                v,
                call.cu_q,
                call.cu_k,
                call.max_q,
                call.max_k,
                return_aux=AuxRequest(lse=True),
                num_splits=1 if deterministic else None,
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
        none = torch.zeros(2, dtype=torch.uint64, device=q_QND.device)
        for call in calls(segments, q_QND.device):
            queries, keys = slice(call.q0, call.q1), slice(call.k0, call.k1)
            with deterministic_ops(deterministic):
                grads = _aten._flash_attention_backward(
                    grad_QND[queries].contiguous(),
                    q_QND[queries],
                    k_KND[keys],
                    v_KND[keys],
                    o_QND[queries],
                    lse_QN[queries].T.contiguous(),
                    call.cu_q,
                    call.cu_k,
                    call.max_q,
                    call.max_k,
                    0.0,
                    False,
                    none,
                    none,
                )
            for out, rows, value in zip(outs, (queries, keys, keys), grads, strict=True):
                out[rows] = value


def check_half_on_cuda(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """EngineError unless tensors are half precision on CUDA with a head dim that FlashAttention runs."""
    if device.type != "cuda":
        raise EngineError(f"kernel {name} runs on cuda only, tensors are on {device}; use engine.kernel sdpa")
    if dtype not in (torch.bfloat16, torch.float16):
        raise EngineError(f"kernel {name} runs bfloat16 and float16, tensors are {dtype} (engine.dtype)")
    if head_dim % 8 or head_dim > 256:
        raise EngineError(
            f"kernel {name} needs a head dim that is a multiple of 8 and at most 256, got {head_dim} (model.head_dim)"
        )
