"""The engine against the float64 reference, over random tilings on 1 to 4 ranks, forward and gradients."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from zellige_ray.attention import AttentionEngine, Comm, compile_layout
from zellige_ray.attention.reference import reference_attention
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.attention.tilings import random_round, whole_round
from zellige_ray.placement.plan import Round

HEADS, DIM = 4, 8


def operands(lengths, dtype, seed=0, heads=HEADS, dim=DIM):
    """q, k, v and an output gradient per sequence."""
    g = torch.Generator().manual_seed(seed)
    return [[torch.randn(n, heads, dim, generator=g, dtype=torch.float64).to(dtype) for _ in range(4)] for n in lengths]


def packed(layout, sequences, index):
    rows = [sequences[p.sequence][index][p.start : p.stop] for p in layout.pieces]
    return torch.cat(rows) if rows else sequences[0][index][:0]


def run_engine(round_, sequences, world, heads=HEADS, **options):
    """Output and gradients of every sequence, put together from all ranks; counters per rank."""

    def body(rank, comm):
        layout = compile_layout(round_, rank, heads)
        engine = AttentionEngine(layout, comm, **options)
        q, k, v = (packed(layout, sequences, i).requires_grad_() for i in range(3))
        o = engine.attend(q, k, v)
        forward = (comm.num_exchanges, comm.sent_bytes)
        o.backward(packed(layout, sequences, 3))
        return layout, (o.detach(), q.grad, k.grad, v.grad), forward, (comm.num_exchanges, comm.sent_bytes)

    results = run_ranks(world, body)
    out = [[torch.full_like(x[0], float("nan")) for _ in range(4)] for x in sequences]
    for layout, tensors, _, _ in results:
        for p in layout.pieces:
            for whole, part in zip(out[p.sequence], tensors, strict=True):
                whole[p.start : p.stop] = part[p.offset : p.offset + p.length]
    return out, results


def reference(sequences):
    out = []
    for q, k, v, g in sequences:
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        o = reference_attention(*leaves, [(q.shape[0], q.shape[0])])
        out.append([o.detach(), *torch.autograd.grad(o, leaves, g.double())])
    return out


def error(got, want):
    """Worst max|g - ref| / max(max|ref| of that tensor, 1e-3 x the largest of all)."""
    got = [[torch.nan_to_num(g.double(), nan=float("inf")) for g in gs] for gs in got]
    top = max(float(w.abs().max()) for ws in want for w in ws)
    return max(
        float((g.double() - w).abs().max()) / max(float(w.abs().max()), 1e-3 * top)
        for gs, ws in zip(got, want, strict=True)
        for g, w in zip(gs, ws, strict=True)
    )


@pytest.mark.dist
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(20))
def test_random_tiling_equals_the_reference_in_float64(world, seed):
    rng = np.random.default_rng([seed, world])
    lengths = [1, 3, 17, *(int(x) for x in rng.integers(2, 90, 4))]
    idle = [world - 1] if seed % 5 == 4 and world > 1 else []
    tokenless = [0] if seed % 4 == 3 and world > 1 else []
    round_ = random_round(rng, lengths, world, HEADS, idle=idle, tokenless=tokenless)
    sequences = operands(lengths, torch.float64, seed)
    got, _ = run_engine(round_, sequences, world)
    assert error(got, reference(sequences)) <= 1e-12


@pytest.mark.dist
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_a_long_odd_sequence_shared_by_four_ranks(dtype, limit):
    rng = np.random.default_rng(7)
    lengths = [2301, 1, 3, 17]
    round_ = random_round(rng, lengths, 4, 2, use=("uneven", "shared", "scattered"))
    sequences = operands(lengths, dtype, heads=2)
    got, _ = run_engine(round_, sequences, 4, heads=2)
    assert error(got, reference(sequences)) <= limit


@pytest.mark.dist
@pytest.mark.parametrize("transport", ["p2p", "group", "world"])
def test_every_transport_sends_the_bytes_of_the_formula_in_two_exchanges_each_way(transport):
    rng = np.random.default_rng(3)
    lengths = [40, 31, 17, 5, 64, 3]
    round_ = random_round(rng, lengths, 4, HEADS, use=("heads", "grid", "shared", "far", "whole"))
    sequences = operands(lengths, torch.float32)
    got, results = run_engine(round_, sequences, 4, transport=transport)
    assert error(got, reference(sequences)) <= 1e-5
    for layout, _, (forward, forward_bytes), (both, both_bytes) in results:
        assert forward <= 2 and both <= 4
        rows = layout.wire_rows
        assert forward_bytes == (rows.forward_in + rows.forward_out) * DIM * 4
        assert both_bytes == layout.wire_bytes(DIM, 4) == brute_force_rows(round_, layout.rank) * DIM * 4


def brute_force_rows(round_: Round, rank: int) -> int:
    """Rows a rank sends per layer, cell by cell from the plan: q, k, v out of its home, o home; backward the other way
    round.
    """
    total = 0
    owner = {(s.sequence, t): s.rank for s in round_.shards() for t in range(s.start, s.stop)}
    tile = {
        (x.sequence, h, q): x.rank
        for x in round_.tiles()
        for h in range(x.head_start, x.head_stop)
        for q in range(x.query_start, x.query_stop)
    }
    moved = [(owner[s, q], r) for (s, h, q), r in tile.items() if owner[s, q] != r]
    total += 2 * sum(home == rank for home, _ in moved) + 2 * sum(r == rank for _, r in moved)
    for s, n in enumerate(round_.tokens_S.tolist()):
        holders = {(h, r) for (x, h, _), r in tile.items() if x == s}
        pairs = [(owner[s, t], r) for t in range(n) for _, r in holders if owner[s, t] != r]
        total += 2 * sum(home == rank for home, _ in pairs) + 2 * sum(r == rank for _, r in pairs)
    return total


@pytest.mark.dist
def test_whole_only_plan_sends_nothing():
    lengths = [5, 9, 12, 1]
    sequences = operands(lengths, torch.float32)
    _, results = run_engine(whole_round(lengths, [0, 1, 1, 0], HEADS), sequences, 2)
    assert all(counted == (0, 0) for _, _, _, counted in results)
    assert all(layout.wire_bytes(DIM, 4) == 0 for layout, *_ in results)


def test_whole_only_plan_needs_no_communicator():
    layout = compile_layout(whole_round([5, 9], [0, 0], HEADS), 0, HEADS)
    q = torch.randn(14, HEADS, DIM)
    assert AttentionEngine(layout, None).attend(q, q, q).shape == q.shape


@pytest.mark.dist
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_head_split_attention_is_bit_equal_to_one_process(dtype):
    rng = np.random.default_rng(11)
    lengths = [45, 33, 17, 61]
    round_ = random_round(rng, lengths, 3, HEADS, use=("heads", "whole"))
    sequences = operands(lengths, dtype)
    got, _ = run_engine(round_, sequences, 3)
    alone, _ = run_engine(whole_round(lengths, [0] * 4, HEADS), sequences, 1)
    for gs, ws in zip(got, alone, strict=True):
        for g, w in zip(gs, ws, strict=True):
            assert torch.equal(g, w)


@pytest.mark.dist
def test_same_plan_twice_is_bit_equal_and_neighbours_are_independent():
    rng = np.random.default_rng(5)
    lengths = [45, 33, 17, 61]
    round_ = random_round(rng, lengths, 4, HEADS, use=("shared", "uneven", "scattered"))
    sequences = operands(lengths, torch.float32)
    first, _ = run_engine(round_, sequences, 4)
    again, _ = run_engine(round_, sequences, 4)
    touched = [x if s else [y * 1.5 + 1 for y in x] for s, x in enumerate(sequences)]
    other, _ = run_engine(round_, touched, 4)
    for s in range(4):
        for a, b, c in zip(first[s], again[s], other[s], strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a, c) == (s > 0)


@pytest.mark.dist
@pytest.mark.parametrize("fault", ["index error", "swapped head", "lost tile", "missing gradient"])
def test_planted_faults_are_caught(fault, monkeypatch):
    """Mutations of the layout of one rank: the exactness check above must see each of them."""
    rng = np.random.default_rng(2)
    lengths = [40, 31, 64]
    round_ = random_round(rng, lengths, 3, HEADS, use=("shared",))
    sequences = operands(lengths, torch.float64)
    module = __import__("zellige_ray.attention.engine", fromlist=["engine"])

    def mutate(layout):
        t = layout.tables
        if fault == "index error":  # two tokens of the outputs change places on the wire
            part, copy, others = first_copy(t.home_q, tokens=2)
            swapped = [
                copy._replace(tokens=1, wire=copy.wire + 1),
                copy._replace(tokens=1, cell=copy.cell + copy.cell_token),
            ]
            rest = copy._replace(tokens=copy.tokens - 2, cell=copy.cell + 2 * copy.cell_token, wire=copy.wire + 2)
            t = dataclasses.replace(t, home_q=t.home_q._replace(**{part: (*others, *swapped, rest)}))
        if fault == "swapped head":  # the keys of one head go to another unit
            k = t.unit[1]
            part, copy, others = first_copy(k, heads=2)
            swapped = [
                copy._replace(heads=1, wire=copy.wire + copy.wire_head),
                copy._replace(heads=1, cell=copy.cell + copy.cell_head),
            ]
            rest = copy._replace(
                heads=copy.heads - 2, cell=copy.cell + 2 * copy.cell_head, wire=copy.wire + 2 * copy.wire_head
            )
            t = dataclasses.replace(t, unit=(t.unit[0], k._replace(**{part: (*others, *swapped, rest)}), t.unit[2]))
        if fault == "lost tile":  # half of a rectangle's outputs never come, the other half stands in for them
            part, copy, others = first_copy(t.home_q, tokens=2)
            half = copy._replace(tokens=copy.tokens // 2)
            lost = half._replace(cell=copy.cell + half.tokens * copy.cell_token)
            rest = copy._replace(
                tokens=copy.tokens - 2 * half.tokens,
                cell=copy.cell + 2 * half.tokens * copy.cell_token,
                wire=copy.wire + 2 * half.tokens,
            )
            t = dataclasses.replace(t, home_q=t.home_q._replace(**{part: (*others, half, lost, rest)}))
        if fault == "missing gradient":  # only the first of several copies is counted
            assert any(len(x.parts) > 1 for x in t.sums[0])
            t = dataclasses.replace(
                t, sums=tuple(tuple(x._replace(parts=x.parts[:1]) for x in part) for part in t.sums)
            )
        return dataclasses.replace(layout, tables=t)

    class Mutant(AttentionEngine):
        def __init__(self, layout, comm, **options):
            super().__init__(mutate(layout) if layout.rank == victim else layout, comm, **options)

    victim = next(r for r in range(3) if suits(compile_layout(round_, r, HEADS), fault))
    monkeypatch.setitem(globals(), "AttentionEngine", Mutant)
    got, _ = run_engine(round_, sequences, 3)
    assert module.AttentionEngine is not Mutant
    assert error(got, reference(sequences)) > 1e-3


def first_copy(copies, heads=1, tokens=1):
    """(part, the first copy at least this large, the others of that part)."""
    for part in ("away", "own"):
        for i, copy in enumerate(getattr(copies, part)):
            if copy.heads >= heads and copy.tokens >= tokens:
                return part, copy, (*getattr(copies, part)[:i], *getattr(copies, part)[i + 1 :])
    return None


def suits(layout, fault):
    t = layout.tables
    if fault == "missing gradient":
        return any(len(x.parts) > 1 for x in t.sums[0])
    return (
        first_copy(t.unit[1], heads=2) is not None
        if fault == "swapped head"
        else first_copy(t.home_q, tokens=2) is not None
    )


def test_cross_attention_is_local_and_exact():
    layout = compile_layout(whole_round([5, 9, 1], [0, 0, 0], HEADS), 0, HEADS)
    engine = AttentionEngine(layout, None)
    text = [3, 1, 7]
    lengths = [(p.length, n) for p, n in zip(layout.pieces, text, strict=True)]
    q, k, v = (torch.randn(n, HEADS, DIM, dtype=torch.float64, requires_grad=True) for n in (15, 11, 11))
    grad = torch.randn(15, HEADS, DIM, dtype=torch.float64)
    o = engine.cross(q, k, v, text)
    want = reference_attention(q, k, v, lengths)
    assert torch.allclose(o, want, rtol=0, atol=1e-13)
    for g, w in zip(torch.autograd.grad(o, (q, k, v), grad), torch.autograd.grad(want, (q, k, v), grad), strict=True):
        assert torch.allclose(g, w, rtol=0, atol=1e-13)


_ = Comm
