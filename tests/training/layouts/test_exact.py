"""Sharded or not, the same curve, the same weights, the same norm: on 2, 3 and 4 ranks, one of them idle by turns."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from tests.actors.tiny_data import write_cache
from tests.training.layouts.small import Case, flat, make_runner, nodes_of, one_step, worst
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.data.cache import LatentCache
from zellige_ray.training.layouts import Place

pytestmark = pytest.mark.dist
STEPS = 20
FLOAT32, FLOAT64 = 1e-5, 1e-10

Run = tuple[list[float], list[float], dict[str, torch.Tensor]]


def few(name: str) -> bool:
    """Like LoRA: a few parameters inside some blocks."""
    return "blocks.1." in name and ("qkv" in name or "out" in name)


CASES = {
    "plain": Case(),
    "full": Case(checkpointing="full"),
    "attention": Case(checkpointing="attention"),
    "few": Case(trained=few),
    "few, full": Case(trained=few, checkpointing="full"),
    "float32": Case(dtype=torch.float32, optimizer={"lr": 1e-3}),
    "float32, full": Case(dtype=torch.float32, optimizer={"lr": 1e-3}, checkpointing="full"),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


def train(cache: LatentCache, case: Case, layout: str, world: int, steps: int = STEPS) -> Run:
    def body(rank: int, comm: Comm) -> Run:
        runner, peers = make_runner(cache, case, layout), comm if comm.size > 1 else None
        assert runner.state.settle(peers, nodes_of(world), 0) == 0
        assert runner.state.sharded == (len(Place(layout, nodes_of(world), rank).members) > 1)
        pairs = [one_step(runner, cache, peers) for _ in range(steps)]
        return [p[0] for p in pairs], [p[1] for p in pairs], flat(runner.state.full_state_dict(peers))

    runs = run_ranks(world, body)
    for other in runs[1:]:
        assert other[:2] == runs[0][:2]
        assert all(torch.equal(other[2][n], t) for n, t in runs[0][2].items())
    return runs[0]


@pytest.fixture(scope="module")
def alone(cache: LatentCache) -> Callable[[str], Run]:
    return functools.cache(lambda case: train(cache, CASES[case], "replicated", 1))


def check(run: Run, reference: Run, bound: float) -> None:
    assert min(reference[1]) > CASES["plain"].clip  # every step is clipped, so that a wrong norm would show
    for mine, theirs in zip(run[:2], reference[:2], strict=True):
        assert max(abs(a - b) / abs(b) for a, b in zip(mine, theirs, strict=True)) <= bound
    of = learned if bound == FLOAT32 else dict
    assert worst(of(run[2]), of(reference[2])) <= bound


def learned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without biases of keys: softmax is blind to them, so their gradient is rounding, and Adam makes it whole steps.

    Keys are the first half where keys and values share a bias.
    """
    return {n: t[len(t) // 2 :] if "cross_kv.bias" in n and t.ndim else t for n, t in tensors.items()}


QUICK = {("plain", "hsdp", 3), ("full", "fsdp", 4), ("few", "hsdp", 4), ("float32", "fsdp", 2)}
ALL = [(case, layout, world) for case in CASES for layout in ("fsdp", "hsdp") for world in (2, 3, 4)]


@pytest.mark.parametrize(
    ("case", "layout", "world"), [pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow) for c in ALL]
)
def test_twenty_steps_equal_those_of_one_process(
    cache: LatentCache, alone: Callable[[str], Run], case: str, layout: str, world: int
) -> None:
    bound = FLOAT32 if case.startswith("float32") else FLOAT64
    check(train(cache, CASES[case], layout, world), alone(case), bound)
