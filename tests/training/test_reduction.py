"""Gradients are summed over ranks, each rank's share once, whoever had nothing to add."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.errors import Regroup
from zellige_ray.training.reduction import GradientReducer

ALIKE = threading.Lock()  # ranks are threads here, and torch's seed belongs to the process


def make_module() -> nn.Module:
    with ALIKE:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3))


@pytest.mark.dist
@pytest.mark.parametrize("bucket_bytes", [1, 64, 1 << 20])
def test_the_sum_over_ranks_equals_one_process_and_the_norm_is_the_true_one(bucket_bytes: int) -> None:
    x = torch.randn(9, 7, generator=torch.Generator().manual_seed(1))
    shares = [slice(0, 4), slice(4, 4), slice(4, 9)]  # one rank has no token

    def body(rank: int, comm: Comm) -> tuple[list[torch.Tensor], float]:
        module = make_module()
        reducer = GradientReducer(list(module.parameters()), bucket_bytes)
        reducer.zero()
        module(x[shares[rank]]).square().sum().backward()
        reducer.reduce(comm)
        return [p.grad.clone() for p in module.parameters()], reducer.norm()  # type: ignore[union-attr]

    whole = make_module()
    whole(x).square().sum().backward()
    expected = [p.grad for p in whole.parameters()]
    norm = float(torch.cat([g.flatten() for g in expected]).double().norm())  # type: ignore[union-attr]
    for grads, got in run_ranks(3, body):
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(grads, expected, strict=True))
        assert got == pytest.approx(norm, rel=1e-6)


@pytest.mark.dist
def test_all_ranks_hold_the_same_bits_after_the_reduction() -> None:
    def body(rank: int, comm: Comm) -> bytes:
        module = make_module()
        reducer = GradientReducer(list(module.parameters()))
        generator = torch.Generator().manual_seed(rank)
        for p in module.parameters():
            p.grad.copy_(torch.randn(p.shape, generator=generator))  # type: ignore[union-attr]
        reducer.reduce(comm)
        return b"".join(p.grad.numpy().tobytes() for p in module.parameters())  # type: ignore[union-attr]

    assert len(set(run_ranks(4, body))) == 1


@pytest.mark.dist
def test_a_cancelled_reduction_is_left_by_regroup() -> None:
    def body(rank: int, comm: Comm) -> str:
        reducer = GradientReducer(list(make_module().parameters()))
        if rank == 1:
            return "stays away"
        comm.cancel()
        with pytest.raises(Regroup):
            reducer.reduce(comm)
        return "left"

    assert run_ranks(2, body) == ["left", "stays away"]


def test_gradients_are_views_of_their_buckets_also_after_backward() -> None:
    module = make_module()
    reducer = GradientReducer(list(module.parameters()))
    module(torch.ones(2, 7)).sum().backward()
    reducer.scale(0.0)
    assert all(not p.grad.any() for p in module.parameters())  # type: ignore[union-attr]
