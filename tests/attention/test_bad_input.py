"""Bad plans and operands: a named error on all ranks before anything is exchanged."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from zellige_ray.attention import AttentionEngine, compile_layout
from zellige_ray.attention.agreement import agree
from zellige_ray.attention.kernels import get_kernel, kernels
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.attention.tilings import random_round, whole_round
from zellige_ray.errors import EngineError, PlanError

HEADS = 4


def cut_round():
    return random_round(np.random.default_rng(3), [24], 2, HEADS, use=("shared",))


@pytest.mark.parametrize(
    ("column", "row", "delta", "what"),
    [
        ("tiles_M6", 0, (0, 0, 0, 0, 0, -1), "attention"),
        ("tiles_M6", 0, (0, 0, 0, 0, -1, 0), "attention"),
        ("shards_K4", 0, (0, 0, 0, -1), "tokens"),
    ],
)
def test_a_missing_or_doubled_cell_is_a_plan_error_on_every_rank(column, row, delta, what):
    round_ = cut_round()
    rows = getattr(round_, column).copy()
    rows[row] += np.array(delta)
    broken = dataclasses.replace(round_, **{column: rows})
    for rank in range(2):
        with pytest.raises(PlanError, match=f"{what} of sequence s0"):
            compile_layout(broken, rank, HEADS)


def test_a_tile_beyond_the_models_heads_is_a_plan_error():
    with pytest.raises(PlanError, match="3 heads"):
        compile_layout(cut_round(), 0, 3)


def test_a_sequence_without_shard_is_a_plan_error():
    round_ = whole_round([4, 5], [0, 0], HEADS)
    with pytest.raises(PlanError, match="s1"):
        compile_layout(dataclasses.replace(round_, shards_K4=round_.shards_K4[:1]), 0, HEADS)


def test_operands_that_are_not_the_plans_are_refused():
    engine = AttentionEngine(compile_layout(whole_round([4, 5], [0, 0], HEADS), 0, HEADS), None)
    q = torch.randn(9, HEADS, 8)
    with pytest.raises(EngineError, match="9 tokens, 4 heads"):
        engine.attend(q[:8], q[:8], q[:8])
    with pytest.raises(EngineError, match="9 tokens, 4 heads"):
        engine.attend(*[torch.randn(9, 3, 8)] * 3)
    with pytest.raises(EngineError, match="one dtype"):
        engine.attend(q, q.double(), q)
    with pytest.raises(EngineError, match="on cpu"):
        engine.attend(q, q.to("meta"), q)
    with pytest.raises(EngineError, match="can't be attended"):
        engine.local(q, q[:4], q[:4], [(5, 4), (4, 0)])


def test_kernels_that_cannot_run_say_so_and_do_not_fall_back():
    q = torch.randn(9, HEADS, 8)
    layout = compile_layout(whole_round([4, 5], [0, 0], HEADS), 0, HEADS)
    for name in ("varlen", "flash"):
        with pytest.raises(EngineError, match="cuda only"):
            AttentionEngine(layout, None, kernel=name).attend(q, q, q)
    with pytest.raises(EngineError, match=r"can't run torch\.int64"):
        kernels["sdpa"].check(torch.device("cpu"), torch.int64, 8)
    with pytest.raises(EngineError, match="known are"):
        get_kernel("nosuch")
    with pytest.raises(EngineError, match="transport"):
        AttentionEngine(layout, None, transport="nosuch")


def test_a_shared_sequence_without_communicator_is_refused():
    layout = compile_layout(cut_round(), 0, HEADS)
    q = torch.randn(layout.num_tokens, HEADS, 8)
    with pytest.raises(EngineError, match="needs a communicator"):
        AttentionEngine(layout, None).attend(q, q, q)


@pytest.mark.dist
def test_different_plan_hashes_are_named_on_all_ranks_within_a_second():
    def body(rank, comm):
        began = time.monotonic()
        with pytest.raises(EngineError, match=r"ranks \[2\]"):
            agree(comm, "aaaa" if rank != 2 else "bbbb", HEADS, "float32")
        agree(comm, "aaaa", HEADS, "float32")
        return time.monotonic() - began

    assert max(run_ranks(3, body)) < 1.0


def test_importing_the_room_and_the_specs_loads_neither_torch_nor_diffusers():
    code = (
        "import sys, zellige_ray.attention; from zellige_ray.models.specs import get_spec; get_spec('wan');"
        "print('torch' in sys.modules, 'diffusers' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_layout_needs_no_torch():
    code = "import sys; from zellige_ray.attention.layout import compile_layout; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False"]
