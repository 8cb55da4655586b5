"""Kernels: bits of the CPU kernel, the bf16 rule, buckets of the CUDA kernels, overlap parts, autocast."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from zellige_ray.attention import AttentionEngine, compile_layout
from zellige_ray.attention.kernels import kernels
from zellige_ray.attention.kernels.cumulative import BUCKET_FACTOR, calls
from zellige_ray.attention.reference import reference_attention
from zellige_ray.attention.segments import pack_segments
from zellige_ray.attention.tilings import random_round, whole_round
from zellige_ray.errors import EngineError

HEADS, DIM = 4, 16


def run_kernel(lengths, dtype, seed=0):
    segments = pack_segments([(1, q, k) for q, k in lengths])
    g = torch.Generator().manual_seed(seed)
    q, k, v, grad = (
        torch.randn(n, HEADS, DIM, generator=g).to(dtype)
        for n in (segments.num_q, segments.num_k, segments.num_k, segments.num_q)
    )
    o, outs = torch.empty_like(q), (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
    lse = kernels["sdpa"].forward(q, k, v, segments, o, True)
    kernels["sdpa"].backward(grad, q, k, v, o, lse, segments, outs, True)
    return (q, k, v, grad), (o, *outs), lse


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_segments_have_the_bits_of_the_public_call(dtype):
    lengths = [(5, 5), (5, 5), (17, 3), (1, 9), (33, 33)]
    (q, k, v, grad), got, lse = run_kernel(lengths, dtype)
    a = b = 0
    for queries, keys in lengths:
        rows, cols = slice(a, a + queries), slice(b, b + keys)
        leaves = [x.transpose(0, 1)[None].requires_grad_() for x in (q[rows], k[cols], v[cols])]
        o = F.scaled_dot_product_attention(*leaves)
        want = [o, *torch.autograd.grad(o, leaves, grad[rows].transpose(0, 1)[None])]
        for x, w, part in zip(got, want, (rows, rows, cols, cols), strict=True):
            assert torch.equal(x[part], w[0].transpose(0, 1))
        scores = torch.einsum("qnh,knh->qnk", q[rows].double(), k[cols].double()) * DIM**-0.5
        assert torch.allclose(
            lse[rows].double(), torch.logsumexp(scores, -1), atol=1e-2 if dtype == torch.bfloat16 else 1e-5
        )
        a, b = a + queries, b + keys


def test_one_key_has_exactly_no_gradient_of_scores():
    _, (o, dq, dk, dv), _ = run_kernel([(40, 1), (3, 1)], torch.float32)
    assert float(dq.abs().max()) == 0 and float(dk.abs().max()) == 0
    assert float(dv.abs().max()) > 0 and float(o.abs().max()) > 0


def test_bf16_is_at_most_twice_as_far_from_float64_as_one_process_in_bf16():
    """Query-split tiles whose partial dK, dV merge in float32, against the plain bf16 kernel on the whole sequence."""
    from zellige_ray.attention.rehearsal import run_ranks

    lengths = [257, 64]
    g = torch.Generator().manual_seed(0)
    data = [[torch.randn(n, HEADS, DIM, generator=g).to(torch.bfloat16) for _ in range(4)] for n in lengths]
    round_ = random_round(np.random.default_rng(4), lengths, 4, HEADS, use=("shared",))

    def body(rank, comm):
        layout = compile_layout(round_, rank, HEADS)
        rows = [
            torch.cat([data[p.sequence][i][p.start : p.stop] for p in layout.pieces] or [data[0][i][:0]])
            for i in range(4)
        ]
        leaves = [x.requires_grad_() for x in rows[:3]]
        o = AttentionEngine(layout, comm).attend(*leaves)
        o.backward(rows[3])
        return layout, [o.detach(), *(x.grad for x in leaves)]

    got = [[torch.zeros(n, HEADS, DIM) for _ in range(4)] for n in lengths]
    for layout, tensors in run_ranks(4, body):
        for p in layout.pieces:
            for whole, part in zip(got[p.sequence], tensors, strict=True):
                whole[p.start : p.stop] = part[p.offset : p.offset + p.length].float()
    for s, n in enumerate(lengths):
        exact = [x.double().requires_grad_() for x in data[s][:3]]
        o = reference_attention(*exact, [(n, n)])
        want = [o.detach(), *torch.autograd.grad(o, exact, data[s][3].double())]
        alone = [x.transpose(0, 1)[None].clone().requires_grad_() for x in data[s][:3]]
        o = F.scaled_dot_product_attention(*alone)
        plain = [
            x[0].transpose(0, 1) for x in (o.detach(), *torch.autograd.grad(o, alone, data[s][3].transpose(0, 1)[None]))
        ]
        for x, p, w in zip(got[s], plain, want, strict=True):
            assert float((x.double() - w).abs().max()) <= 2 * float((p.double() - w).abs().max())


def test_buckets_of_a_variable_length_call_span_at_most_the_factor():
    lengths = [(n, n) for n in (4096, 3000, 3000, 900, 500, 500, 120, 16, 3, 1)]
    segments = pack_segments([(1, q, k) for q, k in lengths])
    buckets = list(calls(segments, torch.device("cpu")))
    assert sum(c.q1 - c.q0 for c in buckets) == segments.num_q and len(buckets) == 4
    assert all(a.q1 == b.q0 and a.k1 == b.k0 for a, b in itertools.pairwise(buckets))
    for c in buckets:
        sizes = c.cu_k.diff()
        assert int(c.cu_q[-1]) == c.q1 - c.q0 and int(sizes.max()) == c.max_k <= BUCKET_FACTOR * int(sizes.min())


def test_no_segment_is_empty():
    assert pack_segments([(3, 0, 0), (0, 5, 5)]).runs == ()
    with pytest.raises(EngineError, match="positive"):
        pack_segments([(1, 3, 0)])


def test_overlap_parts_of_the_plan_are_the_fillers_of_the_layout():
    round_ = dataclasses.replace(whole_round([3, 9, 5, 9], [0] * 4, HEADS), second=("s1", "s2"))
    layout = compile_layout(round_, 0, HEADS)
    assert [p.sequence for p in layout.pieces] == [3, 0, 1, 2]
    assert (layout.num_first, layout.num_whole) == (12, 26)
    q = torch.randn(26, HEADS, DIM, dtype=torch.float64)
    want = reference_attention(q, q, q, [(p.length, p.length) for p in layout.pieces])
    assert torch.allclose(AttentionEngine(layout, None).attend(q, q, q), want, rtol=0, atol=1e-13)


def test_equal_fillers_share_one_call():
    layout = compile_layout(whole_round([8, 3, 8, 8, 3], [0] * 5, HEADS), 0, HEADS)
    assert [(run.repeats, run.queries) for run in AttentionEngine(layout, None).first.runs] == [(3, 8), (2, 3)]


def test_autocast_runs_the_kernel_in_its_dtype():
    layout = compile_layout(whole_round([9], [0], HEADS), 0, HEADS)
    q = torch.randn(9, HEADS, DIM, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        o = AttentionEngine(layout, None).attend(q, q, q)
    assert o.dtype == torch.bfloat16
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_the_clock_separates_attention_from_exchange():
    layout = compile_layout(whole_round([64], [0], HEADS), 0, HEADS)
    engine = AttentionEngine(layout, None)
    q = torch.randn(64, HEADS, DIM, requires_grad=True)
    engine.attend(q, q, q).sum().backward()
    assert engine.clock.read().attention_s > 0
    engine.clock.reset()
    assert engine.clock.read().attention_s == 0


def test_fillers_run_while_exchanges_are_in_flight_forward_and_backward(monkeypatch):
    """What is started, run and waited for, in order, on one rank that shares a sequence and holds two fillers."""
    from zellige_ray.attention import engine as module
    from zellige_ray.attention.exchange import Exchange
    from zellige_ray.attention.rehearsal import run_ranks
    from zellige_ray.attention.trials import HEADS as N
    from zellige_ray.attention.trials import even_round

    round_ = even_round(((0, 1),), 32, ((0, 7), (0, 5)))
    told: list[str] = []

    class Told:
        name = "told"

        def __init__(self, inner):
            self.inner = inner

        def check(self, *args):
            return None

        def forward(self, q, k, v, segments, out, deterministic):
            told.append(f"attend {segments.num_q}")
            return self.inner.forward(q, k, v, segments, out, deterministic)

        def backward(self, grad, q, k, v, o, lse, segments, outs, deterministic):
            told.append(f"differentiate {segments.num_q}")
            self.inner.backward(grad, q, k, v, o, lse, segments, outs, deterministic)

    class ToldExchange(Exchange):
        def start(self, move, operands):
            told.append("start")
            return super().start(move, operands)

        def finish(self, flight):
            told.append("wait")
            return super().finish(flight)

    monkeypatch.setattr(module, "choose_kernel", lambda *_: Told(kernels["sdpa"]))

    def body(rank, comm):
        layout = compile_layout(round_, rank, N)
        engine = AttentionEngine(layout, comm)
        if rank == 0:
            engine.exchange.__class__ = ToldExchange
        else:
            engine._kernel = lambda _q: kernels["sdpa"]
        q = torch.randn(layout.num_tokens, N, 8, requires_grad=True)
        engine.attend(q, q, q).sum().backward()

    run_ranks(2, body)
    units = N // 2 * 32
    assert told == [
        "start", "attend 7", "wait", f"attend {units}", "start", "attend 5", "wait",
        "start", "differentiate 5", "wait", f"differentiate {units}", "start", "differentiate 7", "wait",
    ]  # fmt: skip


def test_compiling_a_large_plan_is_fast():
    """300 sequences on 16 ranks, 24 heads, 15 of them cut; benchmarks/engine_layout.py measures the bar of 5 ms."""
    import time

    rng = np.random.default_rng(0)
    lengths = [20000] * 15 + [int(n) for n in rng.integers(200, 5000, 285)]
    cut = random_round(rng, lengths[:15], 16, 24, use=("uneven", "heads"))
    whole = whole_round(lengths[15:], [int(r) for r in rng.integers(0, 16, 285)], 24)
    round_ = dataclasses.replace(
        cut,
        ids=tuple(f"s{i}" for i in range(300)),
        tokens_S=np.array(lengths),
        text_tokens_S=np.zeros(300, dtype=np.int64),
        shards_K4=np.concatenate([cut.shards_K4, whole.shards_K4 + np.array([15, 0, 0, 0])]),
        tiles_M6=np.concatenate([cut.tiles_M6, whole.tiles_M6 + np.array([15, 0, 0, 0, 0, 0])]),
    )
    seconds = []
    for rank in range(16):
        began = time.perf_counter()
        compile_layout(round_, rank, 24)
        seconds.append(time.perf_counter() - began)
    assert float(np.median(seconds)) < 0.05
