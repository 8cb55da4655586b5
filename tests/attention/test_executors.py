"""The door for other executors: a double that gathers keys by its own messages, beside the engine's exchange."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from zellige_ray.attention import AttentionEngine, compile_layout
from zellige_ray.attention.executors import executors
from zellige_ray.attention.reference import reference_attention
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.attention.segments import pack_segments
from zellige_ray.attention.tilings import random_round
from zellige_ray.errors import EngineError

HEADS, DIM = 4, 8


class GatherKeys:
    """Every home attends with its own queries to all keys, which the homes send each other; tiles must say the same."""

    def check(self, cut, heads):
        for rank, blocks in cut.blocks.items():
            if len(blocks) != 1 or blocks[0].heads != heads or blocks[0].queries != cut.homes.get(rank):
                raise EngineError("gather_keys runs query-split tiles that follow the shards")

    def attend(self, q, k, v, part, comm, kernel):
        return _Gather.apply(q, k, v, part, comm, kernel)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, part, comm, kernel):
        rows = {rank: sum(b - a for a, b in spans) * HEADS for rank, spans in part.cut.homes.items()}
        others = sorted(r for r in rows if r != part.rank)
        mine = torch.cat((k, v), dim=-1).reshape(-1, 2 * DIM)
        got = comm.exchange(
            mine.repeat(len(others), 1),
            dict.fromkeys(others, rows[part.rank]),
            {r: rows[r] for r in others},
            part.next_key(),
        ).wait()
        parts = dict(zip(others, got.split([rows[r] for r in others]), strict=True)) | {part.rank: mine}
        kv = torch.cat([parts[r] for r in sorted(parts)]).view(-1, HEADS, 2 * DIM)
        keys, values = kv[..., :DIM].contiguous(), kv[..., DIM:].contiguous()
        segments = pack_segments([(1, q.shape[0], keys.shape[0])])
        o = torch.empty_like(q)
        lse = kernel.forward(q, keys, values, segments, o, True)
        ctx.save_for_backward(q, keys, values, o, lse)
        ctx.kept = (part, comm, kernel, segments, rows, others)
        return o

    @staticmethod
    def backward(ctx, grad):
        q, keys, values, o, lse = ctx.saved_tensors
        part, comm, kernel, segments, rows, others = ctx.kept
        outs = torch.empty_like(q), torch.empty_like(keys), torch.empty_like(values)
        kernel.backward(grad.contiguous(), q, keys, values, o, lse, segments, outs, True)
        split = dict(
            zip(
                sorted(rows),
                torch.cat(outs[1:], dim=-1).reshape(-1, 2 * DIM).split([rows[r] for r in sorted(rows)]),
                strict=True,
            )
        )
        send = torch.cat([split[r] for r in others])
        got = comm.exchange(
            send, {r: rows[r] for r in others}, dict.fromkeys(others, rows[part.rank]), part.next_key()
        ).wait()
        total = torch.zeros_like(split[part.rank])
        partial = dict(zip(others, got.split(rows[part.rank]), strict=True)) | {part.rank: split[part.rank]}
        for r in sorted(partial):
            total = total + partial[r]
        kv = total.view(-1, HEADS, 2 * DIM)
        return outs[0], kv[..., :DIM].contiguous(), kv[..., DIM:].contiguous(), None, None, None


def mixed_round():
    """A sequence by the double over ranks 0 and 2, random others by the exchange."""
    base = random_round(np.random.default_rng(1), [20, 31, 9], 3, HEADS, use=("shared", "whole"))
    n = 25
    return dataclasses.replace(
        base,
        ids=(*base.ids, "streamed"),
        tokens_S=np.append(base.tokens_S, n),
        text_tokens_S=np.append(base.text_tokens_S, 0),
        shards_K4=np.concatenate([base.shards_K4, [[3, 0, 0, 11], [3, 2, 11, n]]]),
        tiles_M6=np.concatenate([base.tiles_M6, [[3, 0, 0, HEADS, 0, 11], [3, 2, 0, HEADS, 11, n]]]),
        executors={"streamed": "gather_keys"},
    )


@pytest.mark.dist
def test_a_registered_executor_runs_beside_the_exchange(monkeypatch):
    monkeypatch.setitem(executors, "gather_keys", GatherKeys())
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
    with pytest.raises(EngineError, match="gather_keys"):
        AttentionEngine(layout, None)


@pytest.mark.dist
def test_a_tiling_the_executor_cannot_run_is_refused(monkeypatch):
    monkeypatch.setitem(executors, "gather_keys", GatherKeys())
    round_ = mixed_round()
    tiles = np.concatenate([round_.tiles_M6[:-2], [[3, 0, 0, 2, 0, 25], [3, 2, 2, HEADS, 0, 25]]])
    layout = compile_layout(dataclasses.replace(round_, tiles_M6=tiles), 0, HEADS)
    with pytest.raises(EngineError, match="query-split"):
        AttentionEngine(layout, None)
