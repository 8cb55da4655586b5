"""An executor for tests: it gathers keys by its own messages, and needs query-split tiles that follow the shards."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from zellige_ray.attention.segments import pack_segments
from zellige_ray.errors import EngineError
from zellige_ray.placement.plan import Round

NAME = "gather_keys"


def streamed(round_: Round, sequence: int, cuts: dict[int, tuple[int, int]], heads: int) -> Round:
    """The round with one sequence by this executor. cuts: rank -> its tokens, which are its queries too."""
    shards = [(sequence, rank, a, b) for rank, (a, b) in cuts.items()]
    tiles = [(sequence, rank, 0, heads, a, b) for rank, (a, b) in cuts.items()]
    others = (rows[rows[:, 0] != sequence] for rows in (round_.shards_K4, round_.tiles_M6))
    shards_K4, tiles_M6 = (
        np.array(sorted([*map(tuple, o.tolist()), *new])) for o, new in zip(others, (shards, tiles), strict=True)
    )
    return dataclasses.replace(round_, shards_K4=shards_K4, tiles_M6=tiles_M6, executors={round_.ids[sequence]: NAME})


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
        _, heads, dim = q.shape
        rows = {rank: sum(b - a for a, b in spans) * heads for rank, spans in part.cut.homes.items()}
        others = sorted(r for r in rows if r != part.rank)
        mine = torch.cat((k, v), dim=-1).reshape(-1, 2 * dim)
        got = comm.exchange(
            mine.repeat(len(others), 1),
            dict.fromkeys(others, rows[part.rank]),
            {r: rows[r] for r in others},
            part.next_key(),
        ).wait()
        parts = dict(zip(others, got.split([rows[r] for r in others]), strict=True)) | {part.rank: mine}
        kv = torch.cat([parts[r] for r in sorted(parts)]).view(-1, heads, 2 * dim)
        keys, values = kv[..., :dim].contiguous(), kv[..., dim:].contiguous()
        segments = pack_segments([(1, q.shape[0], keys.shape[0])])
        o = torch.empty_like(q)
        lse = kernel.forward(q, keys, values, segments, o, True)
        ctx.save_for_backward(q, keys, values, o, lse)
        ctx.kept = (part, comm, kernel, segments, rows, others)
        return o

    @staticmethod
    def backward(ctx, grad):
        q, keys, values, o, lse = ctx.saved_tensors
        _, heads, dim = q.shape
        part, comm, kernel, segments, rows, others = ctx.kept
        outs = torch.empty_like(q), torch.empty_like(keys), torch.empty_like(values)
        kernel.backward(grad.contiguous(), q, keys, values, o, lse, segments, outs, True)
        split = dict(
            zip(
                sorted(rows),
                torch.cat(outs[1:], dim=-1).reshape(-1, 2 * dim).split([rows[r] for r in sorted(rows)]),
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
        kv = total.view(-1, heads, 2 * dim)
        return outs[0], kv[..., :dim].contiguous(), kv[..., dim:].contiguous(), None, None, None
