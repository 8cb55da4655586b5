"""The `sdpa` kernel: torch's fused scaled dot product attention, one call per run of equal segments; CPU and CUDA.

It calls the operators below `F.scaled_dot_product_attention` by name, because the public one returns neither the
log-sum-exp nor a backward that can be called. On CPU that is the flash kernel in every dtype, bitwise the same as the
public call (tests/attention/test_kernels.py); on CUDA the memory-efficient one for float32 and the flash one for half
types (written from the operators' schemas, not run by us). CUDA has no fused float64 kernel: refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zellige_ray.attention.kernels.determinism import deterministic_ops
from zellige_ray.attention.segments import Run, Segments
from zellige_ray.errors import EngineError

_aten = torch.ops.aten
_cuda_dtypes = (torch.float32, torch.bfloat16, torch.float16)
_cpu_dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class SdpaKernel:
    """Segments of equal shape that follow each other are one batch of one call."""

    name = "sdpa"

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
        allowed = {"cpu": _cpu_dtypes, "cuda": _cuda_dtypes}.get(device.type)
        if allowed is None:
            raise EngineError(f"kernel sdpa runs on cpu and cuda, tensors are on {device} (engine.kernel)")
        if dtype not in allowed:
            raise EngineError(
                f"kernel sdpa on {device.type} can't run {dtype}, it runs {', '.join(map(str, allowed))} (engine.dtype)"
            )
        if device.type == "cuda" and head_dim % 8:
            raise EngineError(
                f"kernel sdpa on cuda needs a head dim that is a multiple of 8, got {head_dim} (model.head_dim)"
            )

    def forward(
        self, q_QND: Tensor, k_KND: Tensor, v_KND: Tensor, segments: Segments, out_QND: Tensor, deterministic: bool
    ) -> Tensor:
        lse_QN = q_QND.new_empty(q_QND.shape[:2], dtype=_wide(q_QND.dtype))
        for run in segments.runs:
            q, out, lse = _queries(q_QND, run), _queries(out_QND, run), _queries(lse_QN[..., None], run)
            k, v = _keys(k_KND, run), _keys(v_KND, run)
            if run.keys == 1:  # the softmax of one score is 1, exactly
                out.copy_(v.expand_as(out))
                lse.copy_((q * k).sum(-1, keepdim=True, dtype=lse.dtype) * q.shape[-1] ** -0.5)
                continue
            if not q.is_cuda:
                o, row_lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)
            elif q.dtype == torch.float32:
                o, row_lse = _aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, False)[:2]
            else:
                o, row_lse = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, False)[:2]
            out.copy_(o)
            lse[..., 0].copy_(row_lse[..., : run.queries])  # the efficient kernel pads rows
            del o, row_lse  # before the next run makes its own
        return lse_QN

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
        for run in segments.runs:
            grad, q, o = _queries(grad_QND, run), _queries(q_QND, run), _queries(o_QND, run)
            k, v, lse = _keys(k_KND, run), _keys(v_KND, run), _queries(lse_QN[..., None], run)[..., 0]
            if run.keys == 1:
                grads: tuple[Tensor, ...] = (torch.zeros_like(q), torch.zeros_like(k), grad.sum(2, keepdim=True))
            elif not q.is_cuda:
                grads = _aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, o, lse, 0.0, False)
            else:
                with deterministic_ops(deterministic):
                    grads = _cuda_backward(grad, q, k, v, o, lse, run)
            for out, value, view in zip(outs, grads, (_queries, _keys, _keys), strict=True):
                view(out, run).copy_(value)
            del grads, value


def _cuda_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, run: Run
) -> tuple[Tensor, ...]:
    if q.dtype == torch.float32:
        none = torch.zeros((), dtype=torch.int64, device=q.device)
        lse = torch.nn.functional.pad(lse, (0, -run.queries % 32)).contiguous()
        wanted = [True, True, True, False]
        grads: tuple[Tensor, ...] = _aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, None, o, lse, none, none, 0.0, wanted, False
        )
        return grads[:3]
    none = torch.zeros(2, dtype=torch.uint64, device=q.device)
    grads = _aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, o, lse.contiguous(), None, None, run.queries, run.keys, 0.0, False, none, none
    )
    return grads


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _queries(rows_QNX: Tensor, run: Run) -> Tensor:
    """Query rows of a run as [repeats, N, queries, X], a view."""
    rows = rows_QNX[run.q_start : run.q_start + run.repeats * run.queries]
    return rows.view(run.repeats, run.queries, *rows.shape[1:]).transpose(1, 2)


def _keys(rows_KNX: Tensor, run: Run) -> Tensor:
    """Key rows of a run as [repeats, N, keys, X], a view."""
    rows = rows_KNX[run.k_start : run.k_start + run.repeats * run.keys]
    return rows.view(run.repeats, run.keys, *rows.shape[1:]).transpose(1, 2)
