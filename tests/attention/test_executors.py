"""The door for other executors: a double that gathers keys by its own messages, beside the engine's exchange."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.attention.gather_keys import NAME, GatherKeys, streamed
from zellige_ray.attention import AttentionEngine, compile_layout
from zellige_ray.attention.executors import executors
from zellige_ray.attention.reference import reference_attention
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.attention.tilings import random_round
from zellige_ray.errors import EngineError

HEADS, DIM = 4, 8


def mixed_round():
    """A sequence by the double over ranks 0 and 2, random others by the exchange."""
    base = random_round(np.random.default_rng(1), [20, 31, 9, 25], 3, HEADS, use=("shared", "whole"))
    return streamed(base, 3, {0: (0, 11), 2: (11, 25)}, HEADS)


@pytest.mark.dist
def test_a_registered_executor_runs_beside_the_exchange(monkeypatch):
    monkeypatch.setitem(executors, NAME, GatherKeys())
    round_ = mixed_round()
    g = torch.Generator().manual_seed(0)
    data = [
        [torch.randn(n, HEADS, DIM, generator=g, dtype=torch.float64) for _ in range(4)]
        for n in round_.tokens_S.tolist()
    ]

    def body(rank, comm):
        layout = compile_layout(round_, rank, HEADS)
        engine = AttentionEngine(layout, comm)
        q, k, v, grad = (
            torch.cat([data[p.sequence][i][p.start : p.stop] for p in layout.pieces] or [data[0][i][:0]])
            for i in range(4)
        )
        leaves = [x.requires_grad_() for x in (q, k, v)]
        outs = []
        for _ in range(2):  # two layers: keys go on
            outs.append(engine.attend(*leaves))
        sum((o * grad).sum() for o in outs).backward()
        return layout, [outs[0].detach(), *(x.grad for x in leaves)]

    for layout, tensors in run_ranks(3, body):
        for p in layout.pieces:
            leaves = [x.clone().requires_grad_() for x in data[p.sequence][:3]]
            o = reference_attention(*leaves, [(leaves[0].shape[0],) * 2])
            want = [o.detach(), *(2 * x for x in torch.autograd.grad(o, leaves, data[p.sequence][3]))]
            for got, w in zip(tensors, want, strict=True):
                assert torch.allclose(got[p.offset : p.offset + p.length], w[p.start : p.stop], rtol=0, atol=1e-12)


def test_an_unknown_executor_is_refused_before_anything_is_exchanged():
    layout = compile_layout(mixed_round(), 0, HEADS)
    with pytest.raises(EngineError, match=NAME):
        AttentionEngine(layout, None)


@pytest.mark.dist
def test_a_tiling_the_executor_cannot_run_is_refused(monkeypatch):
    monkeypatch.setitem(executors, NAME, GatherKeys())
    round_ = mixed_round()
    tiles = np.concatenate([round_.tiles_M6[:-2], [[3, 0, 0, 2, 0, 25], [3, 2, 2, HEADS, 0, 25]]])
    layout = compile_layout(dataclasses.replace(round_, tiles_M6=tiles), 0, HEADS)
    with pytest.raises(EngineError, match="query-split"):
        AttentionEngine(layout, None)
