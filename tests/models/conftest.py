"""Fixtures of the model tests: batches of random latents, one process as the reference, ranks as threads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from zellige_ray.attention import AttentionEngine, compile_layout
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.models import get_spec
from zellige_ray.models.adapter import Packed, joint_parts

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
        out.append(
            SimpleNamespace(
                shape=latent,
                latents=randn(*latent),
                text=randn(text, TEXT_DIM),
                time=time,
                grad=randn(n, spec.latent_channels, *spec.patch),
                pooled=randn(TEXT_DIM),
                label=int(torch.randint(1000, (), generator=g)),
            )
        )
    return out


def pack(adapter, batch, layout, dtype):
    """What training does: the rank's own pieces, nothing else."""
    spec = get_spec(adapter.name)
    parts = []
    for p in layout.pieces:
        b = batch[p.sequence]
        parts.append(
            joint_parts(spec.joint, p.start, p.stop, b.grad.shape[0], b.text.shape[0])
            if spec.joint
            else ((p.start, p.stop), (0, 0))
        )
    owners = [batch[p.sequence] for p in layout.pieces]
    tokens = [adapter.tokens(b.latents, *visual) for b, (visual, _) in zip(owners, parts, strict=True)]
    positions = [adapter.positions(b.shape, *visual) for b, (visual, _) in zip(owners, parts, strict=True)]
    rows = [torch.full((t.shape[0],), i, dtype=torch.int64) for i, t in enumerate(tokens)]
    return Packed(
        tokens_TCphw=torch.cat([*tokens, torch.zeros(0, spec.latent_channels, *spec.patch, dtype=dtype)]),
        positions_T3=torch.cat([*positions, torch.zeros(0, 3, dtype=torch.int64)]),
        row_T=torch.cat([*rows, torch.zeros(0, dtype=torch.int64)]),
        timestep_R=torch.stack([b.time for b in owners]) if owners else torch.zeros(0, dtype=dtype),
        text_LD=torch.cat([*(b.text for b in owners), torch.zeros(0, TEXT_DIM, dtype=dtype)]),
        piece_lengths=tuple(p.length for p in layout.pieces),
        text_lengths=tuple(b.text.shape[0] for b in owners),
        text_spans=tuple(text for _, text in parts) if spec.joint else None,
        piece_rows=tuple(range(len(parts))),
        grids=tuple(spec.grid(b.shape) for b in owners),
        pooled_RP=torch.stack([b.pooled for b in owners]) if owners else None,
        labels_R=torch.tensor([b.label for b in owners], dtype=torch.int64),
    ), parts


def run_packed(adapter, make_module, batch, round_, world, heads, dtype, kernel="sdpa"):
    """Loss, gradients summed over ranks, output per sequence; exchanges per rank."""

    def body(rank, comm):
        module = make_module()
        layout = compile_layout(round_, rank, heads)
        engine = AttentionEngine(layout, comm, kernel)
        packed, parts = pack(adapter, batch, layout, dtype)
        pred = adapter.bind(module)(packed, engine)
        grads = [batch[p.sequence].grad[a:b] for p, ((a, b), _) in zip(layout.pieces, parts, strict=True)]
        loss = (pred * torch.cat(grads)).sum() if grads else pred.sum()
        loss.backward()
        for p in module.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        flat = comm.all_reduce(torch.cat([p.grad.flatten() for p in module.parameters()])).wait()
        for p, part in zip(module.parameters(), flat.split([p.numel() for p in module.parameters()]), strict=True):
            p.grad = part.view_as(p)
        return (
            (layout, parts),
            pred.detach(),
            loss.detach(),
            {n: p.grad for n, p in module.named_parameters()},
            comm.num_exchanges,
        )

    results = run_ranks(world, body)
    outs = [torch.full_like(b.grad, float("nan")) for b in batch]
    for (layout, parts), pred, *_ in results:
        at = 0
        for p, ((a, b), _) in zip(layout.pieces, parts, strict=True):
            outs[p.sequence][a:b] = pred[at : at + b - a]
            at += b - a
    return sum(r[2] for r in results), results[0][3], outs, [r[4] for r in results]


def worst(got, want):
    """Worst max|g - ref| / max(max|ref| of the tensor, 1e-3 x the largest of all)."""
    top = max(float(w.abs().max()) for w in want.values())
    errors = {
        n: float((got[n].double() - w.double()).abs().max()) / max(float(w.abs().max()), 1e-3 * top)
        for n, w in want.items()
    }
    name = max(errors, key=lambda n: errors[n] if errors[n] == errors[n] else float("inf"))
    return errors[name], name


@pytest.fixture
def lab():
    """The functions above."""
    return SimpleNamespace(make_batch=make_batch, pack=pack, run_packed=run_packed, worst=worst, TEXT_DIM=TEXT_DIM)
