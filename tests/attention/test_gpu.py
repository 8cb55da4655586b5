"""CUDA: the kernels against the float64 reference, forward, backward and deterministic; skipped without a GPU."""

from __future__ import annotations

import pytest
import torch

from zellige_ray.attention.kernels import kernels
from zellige_ray.attention.reference import reference_attention
from zellige_ray.attention.segments import pack_segments

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LENGTHS = [(515, 515), (64, 64), (64, 64), (17, 3), (33, 1), (1, 9)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("sdpa", torch.float32), ("sdpa", torch.bfloat16), ("varlen", torch.bfloat16), ("flash", torch.bfloat16)],
)
def test_kernel_equals_the_reference_and_its_deterministic_backward_repeats(name, dtype):
    if name == "flash":
        pytest.importorskip("flash_attn")
    segments = pack_segments([(1, q, k) for q, k in LENGTHS])
    g = torch.Generator().manual_seed(0)
    rows = (segments.num_q, segments.num_k, segments.num_k, segments.num_q)
    q, k, v, grad = (torch.randn(n, 4, 64, generator=g).to("cuda", dtype) for n in rows)
    o = torch.empty_like(q)
    lse = kernels[name].forward(q, k, v, segments, o, True)
    runs = []
    for _ in range(2):
        outs = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
        kernels[name].backward(grad, q, k, v, o, lse, segments, outs, True)
        runs.append(outs)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    want = reference_attention(*leaves, LENGTHS)
    limit = 1e-4 if dtype == torch.float32 else 3e-2
    wants = torch.autograd.grad(want, leaves, grad.double())
    for got, exact in zip((o, *runs[0]), (want.detach(), *wants), strict=True):
        assert float((got.double() - exact).abs().max()) <= limit * float(exact.abs().max())
