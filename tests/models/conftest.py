"""Fixtures of the model tests: batches of random latents, one process as the reference, ranks as threads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from zellige_ray.attention import AttentionEngine, compile_layout
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.models.adapter import Packed

TEXT_DIM = 24


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_batch(spec, shapes, text_lengths, dtype, seed):
    """Per sequence: latents, caption, timestep, and a random output gradient of each token."""
    g = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    out = []
    for shape, text in zip(shapes, text_lengths, strict=True):
        latent = (spec.latent_channels, *(n * p for n, p in zip(shape, spec.patch, strict=True)))
        n = spec.tokens(latent)
        time = torch.rand((), generator=g, dtype=torch.float64).to(dtype)
        out.append(SimpleNamespace(shape=latent, latents=randn(*latent), text=randn(text, TEXT_DIM), time=time, grad=randn(n, spec.latent_channels, *spec.patch)))
    return out


def pack(adapter, batch, layout, dtype):
    """What training does: the rank's own pieces, nothing else."""
    spec_channels = batch[0].latents.shape[0]
    tokens = [adapter.tokens(batch[p.sequence].latents, p.start, p.stop) for p in layout.pieces]
    positions = [adapter.positions(batch[p.sequence].shape, p.start, p.stop) for p in layout.pieces]
    patch = adapter.tokens(batch[0].latents, 0, 0).shape[2:]
    return Packed(
        tokens_TCphw=torch.cat(tokens) if tokens else torch.zeros(0, spec_channels, *patch, dtype=dtype),
        positions_T3=torch.cat(positions) if positions else torch.zeros(0, 3, dtype=torch.int64),
        row_T=torch.cat([torch.full((p.length,), i, dtype=torch.int64) for i, p in enumerate(layout.pieces)] or [torch.zeros(0, dtype=torch.int64)]),
        timestep_R=torch.stack([batch[p.sequence].time for p in layout.pieces]) if tokens else torch.zeros(0, dtype=dtype),
        text_LD=torch.cat([batch[p.sequence].text for p in layout.pieces]) if tokens else torch.zeros(0, TEXT_DIM, dtype=dtype),
        piece_lengths=tuple(p.length for p in layout.pieces),
        text_lengths=tuple(batch[p.sequence].text.shape[0] for p in layout.pieces),
    )


def run_packed(adapter, make_module, batch, round_, world, heads, dtype, kernel="sdpa"):
    """Loss, gradients summed over ranks, output per sequence; exchanges per rank."""

    def body(rank, comm):
        module = make_module()
        layout = compile_layout(round_, rank, heads)
        engine = AttentionEngine(layout, comm, kernel)
        pred = adapter.bind(module)(pack(adapter, batch, layout, dtype), engine)
        grads = [batch[p.sequence].grad[p.start : p.stop] for p in layout.pieces]
        loss = (pred * torch.cat(grads)).sum() if grads else pred.sum()
        loss.backward()
        flat = comm.all_reduce(torch.cat([p.grad.flatten() for p in module.parameters()])).wait()
        for p, part in zip(module.parameters(), flat.split([p.numel() for p in module.parameters()]), strict=True):
            p.grad = part.view_as(p)
        return layout, pred.detach(), loss.detach(), {n: p.grad for n, p in module.named_parameters()}, comm.num_exchanges

    results = run_ranks(world, body)
    outs = [torch.full_like(b.grad, float("nan")) for b in batch]
    for layout, pred, *_ in results:
        for p in layout.pieces:
            outs[p.sequence][p.start : p.stop] = pred[p.offset : p.offset + p.length]
    return sum(r[2] for r in results), results[0][3], outs, [r[4] for r in results]


def worst(got, want):
    """Worst max|g - ref| / max(max|ref| of the tensor, 1e-3 x the largest of all)."""
    top = max(float(w.abs().max()) for w in want.values())
    errors = {n: float((got[n].double() - w.double()).abs().max()) / max(float(w.abs().max()), 1e-3 * top) for n, w in want.items()}
    name = max(errors, key=lambda n: errors[n] if errors[n] == errors[n] else float("inf"))
    return errors[name], name


@pytest.fixture
def lab():
    """The functions above."""
    return SimpleNamespace(make_batch=make_batch, pack=pack, run_packed=run_packed, worst=worst, TEXT_DIM=TEXT_DIM)
