"""Diffusers' families, unmodified: packed and cut over ranks against one sequence at a time through the plain model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.attention.gather_keys import NAME, GatherKeys, streamed
from tests.models.families import FAMILIES, HEADS, MODELS, fresh, plain, random_batch
from zellige_ray.attention.executors import executors
from zellige_ray.attention.tilings import random_round, whole_round
from zellige_ray.errors import ModelError
from zellige_ray.models import get_adapter, get_spec
from zellige_ray.models.family import as_picture, from_picture

LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5}
DTYPES = pytest.mark.parametrize("dtype", LIMITS, ids=["float64", "float32"])


def as_double(x):
    """diffusers' hard-coded `.float()` would hide everything below 1e-7."""
    return x if x.dtype == torch.float64 else x.to(torch.float32)


@pytest.fixture
def _double_casts(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "float", as_double)


def flat(tensors):
    return torch.cat(
        [x.detach().double().flatten() for x in (tensors.values() if isinstance(tensors, dict) else tensors)]
    )


def check(name, lab, dtype, world, seed, checkpointing="none", layers=2, stream=False, **tiling):
    """stream: the fourth sequence is run by another executor, over the first rank and the last."""
    spec, adapter = get_spec(name), get_adapter(name)
    rng = np.random.default_rng([seed, world])
    batch, lengths = random_batch(name, lab, dtype, seed)
    if spec.max_degree == 1:
        round_ = whole_round(lengths, [int(r) for r in rng.integers(0, world, len(lengths))], HEADS)
    else:
        round_ = random_round(rng, lengths, world, HEADS, **tiling)
    if stream:
        round_ = streamed(round_, 3, {0: (0, lengths[3] // 3), world - 1: (lengths[3] // 3, lengths[3])}, HEADS)

    def make(checkpointing="none"):
        return fresh(name, lab, dtype, checkpointing, layers)

    module = make()
    outs = [plain(name, module, b) for b in batch]
    want_loss = sum((o * b.grad).sum() for o, b in zip(outs, batch, strict=True))
    want_loss.backward()
    want = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}
    loss, grads, got, exchanges = lab.run_packed(
        adapter, lambda: make(checkpointing), batch, round_, world, HEADS, dtype
    )
    limit = LIMITS[dtype]
    assert abs(loss - want_loss.detach()) <= limit * max(
        1.0, sum(float((o * b.grad).detach().abs().sum()) for o, b in zip(outs, batch, strict=True))
    )
    for g, o in zip(got, outs, strict=True):
        assert float((g - o).detach().abs().max()) <= limit * float(o.detach().abs().max())
    top = max(float(w.abs().max()) for w in want.values())
    zero = {
        n
        for n in want
        if dtype == torch.float32 and n.endswith("to_k.bias") and name in ("pixart", "sana", "label_dit")
    }
    for n in (
        zero
    ):  # without QK-norm a key bias moves all scores of a query alike: its true gradient is 0, and both sides are noise
        assert float((grads[n] - want[n]).abs().max()) <= limit * top
    error, worst = lab.worst(
        {n: g for n, g in grads.items() if n not in zero}, {n: w for n, w in want.items() if n not in zero}
    )
    assert error <= limit, f"{worst}: {error}"
    return exchanges


@pytest.mark.dist
@pytest.mark.usefixtures("_double_casts")
@DTYPES
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_equals_one_sequence_at_a_time(name, dtype, lab):
    for world in (1, 2, 3, 4):
        idle = [world - 1] if world == 4 else []
        tokenless = [0] if world == 3 else []
        check(name, lab, dtype, world, seed=world, idle=idle, tokenless=tokenless)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.usefixtures("_double_casts")
@DTYPES
@pytest.mark.parametrize("name", FAMILIES)
def test_sixteen_more_tilings_of_every_family(name, dtype, lab):
    for seed in range(16):
        world = 1 + seed % 4
        idle = [world - 1] if seed % 5 == 4 and world > 1 else []
        tokenless = [0] if seed % 3 == 2 and world > 1 else []
        check(name, lab, dtype, world, 10 + seed, layers=1, idle=idle, tokenless=tokenless)


@pytest.mark.dist
@pytest.mark.usefixtures("_double_casts")
@pytest.mark.parametrize("name", [n for n in MODELS if get_spec(n).max_degree != 1])
def test_every_family_runs_a_sequence_by_another_executor_beside_the_exchange(name, lab, monkeypatch):
    monkeypatch.setitem(executors, NAME, GatherKeys())
    check(name, lab, torch.float64, 3, seed=5, layers=1, stream=True)


@pytest.mark.dist
@pytest.mark.parametrize("name", MODELS)
def test_bf16_is_at_most_twice_as_far_from_float64_as_plain_bf16(name, lab, monkeypatch):
    spec, adapter = get_spec(name), get_adapter(name)

    def alone(dtype):
        module, (batch, _) = fresh(name, lab, dtype), random_batch(name, lab, dtype, 0)
        outs = [plain(name, module, b) for b in batch]
        sum((o * b.grad).sum() for o, b in zip(outs, batch, strict=True)).backward()
        return outs, {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}

    plain_outs, plain_grads = alone(torch.bfloat16)  # also imports diffusers' class, which ranks as threads can't
    batch, lengths = random_batch(name, lab, torch.bfloat16, 0)
    round_ = random_round(np.random.default_rng(6), lengths, 3, HEADS, use=("shared", "uneven"))
    if spec.max_degree == 1:
        round_ = whole_round(lengths, [s % 3 for s in range(len(lengths))], HEADS)
    make = lambda: fresh(name, lab, torch.bfloat16)  # noqa: E731
    _, grads, outs, _ = lab.run_packed(adapter, make, batch, round_, 3, HEADS, torch.bfloat16)
    monkeypatch.setattr(torch.Tensor, "float", as_double)
    exact_outs, exact_grads = alone(torch.float64)
    for got, ours, want in ((outs, plain_outs, exact_outs), (grads, plain_grads, exact_grads)):
        got, ours, want = (flat(x) for x in (got, ours, want))
        assert float((got - want).norm()) <= 2 * float((ours - want).norm())


@pytest.mark.dist
@pytest.mark.usefixtures("_double_casts")
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_recomputes(name, lab):
    check(name, lab, torch.float64, 2, seed=9, checkpointing="full")


@pytest.mark.parametrize("name", MODELS[:-1])
def test_binding_changes_no_class_and_no_state_dict_key(name, lab):
    module = fresh(name, lab, torch.float32)
    keys, kind = list(module.state_dict()), type(module)
    bound = get_adapter(name).bind(module)
    assert get_adapter(name).bind(module) is bound
    assert list(module.state_dict()) == keys and type(module) is kind


def test_a_cut_sana_sequence_is_refused(lab):
    spec, adapter = get_spec("sana"), get_adapter("sana")
    batch = lab.make_batch(spec, [(1, 3, 3)], [2], torch.float32, 0)
    round_ = random_round(np.random.default_rng(0), [9], 2, HEADS, use=("uneven",))
    while len(round_.shards_K4) < 2:
        round_ = random_round(np.random.default_rng(len(round_.shards_K4)), [9], 2, HEADS, use=("heads",))
    with pytest.raises(ModelError, match="max_degree 1"):
        lab.run_packed(adapter, lambda: fresh("sana", lab, torch.float32), batch, round_, 2, HEADS, torch.float32)


def test_pictures_of_patches_round_trip():
    tokens = torch.randn(5, 4, 1, 2, 2)
    assert torch.equal(from_picture(as_picture(tokens), tokens), tokens)
