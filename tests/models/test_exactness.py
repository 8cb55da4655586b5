"""Wan and the reference DiT, packed and cut over ranks, against one process that runs the sequences one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zellige_ray.attention.tilings import random_round
from zellige_ray.config import ModelConfig
from zellige_ray.models import get_adapter, get_spec
from zellige_ray.models.adapter import with_empty_captions

HEADS = 3
SHAPES = [(1, 1, 1), (3, 1, 1), (1, 1, 17), (2, 3, 5), (1, 4, 7), (3, 2, 3)]
TEXT = [5, 0, 1, 11, 0, 3]
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5}


def fresh(name, lab, dtype, checkpointing=None):
    """A module with no zero weights, so that every gradient means something."""
    config = ModelConfig(name=name, layers=2, heads=HEADS, head_dim=12, mlp_ratio=2.0)
    module = get_adapter(name).build(config, lab.TEXT_DIM, 0, torch.float64, "cpu")
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=g, dtype=torch.float64) * (0.1 if p.ndim > 1 else 0.02))
    module = module.to(dtype)
    if checkpointing is not None:
        get_adapter(name).bind(module, checkpointing)
    return module


def alone(name, module, batch):
    """Loss, gradients and outputs of the plain module, one sequence after the other, without our hooks."""
    loss, outs = 0.0, []
    adapter = get_adapter(name)
    for b in batch:
        text, _ = with_empty_captions(b.text, (b.text.shape[0],))
        if name == "wan":
            velocity = module(b.latents[None], b.time[None] * 1000, text[None], return_dict=False)[0][0]
            pred = adapter.tokens(velocity, 0, b.grad.shape[0])
        else:
            n = b.grad.shape[0]
            patches = adapter.tokens(b.latents, 0, n)
            pred = module(patches.flatten(1), adapter.positions(b.shape, 0, n), b.time[None], text).view_as(patches)
        loss = loss + (pred * b.grad).sum()
        outs.append(pred.detach())
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in module.named_parameters()}, outs


@pytest.fixture
def _double_casts(monkeypatch):
    """diffusers' hard-coded `.float()` would hide everything below 1e-7."""
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else x.to(torch.float32))


def check(name, lab, dtype, world, seed, checkpointing="none", shapes=SHAPES, text=TEXT, **tiling):
    spec, adapter = get_spec(name), get_adapter(name)
    rng = np.random.default_rng([seed, world])
    batch = lab.make_batch(spec, shapes, text, dtype, seed)
    round_ = random_round(rng, [b.grad.shape[0] for b in batch], world, HEADS, text, **tiling)
    module = fresh(name, lab, dtype)
    want_loss, want, want_outs = alone(name, module, batch)
    loss, grads, outs, exchanges = lab.run_packed(
        adapter, lambda: fresh(name, lab, dtype, checkpointing), batch, round_, world, HEADS, dtype
    )
    limit = LIMITS[dtype]
    assert abs(loss - want_loss) <= limit * max(
        1.0, float(sum((o * b.grad).abs().sum() for o, b in zip(want_outs, batch, strict=True)))
    )
    for got, out in zip(outs, want_outs, strict=True):
        assert float((got - out).abs().max()) <= limit * float(out.abs().max())
    error, name_ = lab.worst(grads, want)
    assert error <= limit, f"{name_}: {error}"
    assert max(exchanges) <= (6 if checkpointing == "full" else 4) * 2
    return exchanges


@pytest.mark.dist
@pytest.mark.usefixtures("_double_casts")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dit", "wan"])
def test_loss_outputs_and_all_gradients_equal_one_process_over_random_tilings(name, world, dtype, lab):
    for seed in range(5):  # twenty tilings over the four worlds
        idle = [world - 1] if seed % 5 == 4 and world > 1 else []
        tokenless = [0] if seed % 4 == 3 and world > 1 else []
        check(name, lab, dtype, world, seed, idle=idle, tokenless=tokenless)


@pytest.mark.dist
@pytest.mark.usefixtures("_double_casts")
@pytest.mark.parametrize("name", ["dit", "wan"])
def test_recomputation_repeats_the_exchanges_unless_attention_is_kept(name, lab):
    use = ("heads", "shared", "uneven")
    plain = check(name, lab, torch.float64, 3, 5, use=use)
    full = check(name, lab, torch.float64, 3, 5, checkpointing="full", use=use)
    kept = check(name, lab, torch.float64, 3, 5, checkpointing="attention", use=use)
    assert max(plain) > 0
    assert [2 * b for b in full] == [3 * a for a in plain]
    assert kept == plain


@pytest.mark.dist
@pytest.mark.usefixtures("_double_casts")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_sequence_of_2301_tokens_beside_one_of_1(dtype, lab):
    # In float32 an empty caption under 2301 tokens compares noise with noise: its key gradients are exactly zero
    # (one key), and plain diffusers' are 3e-8 of the largest gradient.
    text = [0, 2] if dtype == torch.float64 else [9, 2]
    check("wan", lab, dtype, 4, 1, shapes=[(13, 3, 59), (1, 1, 1)], text=text, use=("uneven", "shared"))


@pytest.mark.dist
@pytest.mark.parametrize("name", ["dit", "wan"])
def test_same_plan_and_seed_are_bit_equal(name, lab):
    spec, adapter = get_spec(name), get_adapter(name)
    batch = lab.make_batch(spec, SHAPES, TEXT, torch.float32, 0)
    round_ = random_round(np.random.default_rng(4), [b.grad.shape[0] for b in batch], 3, HEADS, TEXT)
    runs = [
        lab.run_packed(adapter, lambda: fresh(name, lab, torch.float32), batch, round_, 3, HEADS, torch.float32)
        for _ in range(2)
    ]
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(torch.equal(g, runs[1][1][n]) for n, g in runs[0][1].items())
