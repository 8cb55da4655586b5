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
from zellige_ray.training.layouts import Place, layouts

pytestmark = pytest.mark.dist
STEPS = 20
FLOAT32, FLOAT64 = 1e-5, 1e-10

Run = tuple[list[float], list[float], dict[str, torch.Tensor]]


ADAPTED = ("qkv", "cross_kv", "mlp_out", "modulation", "patch_out")


def few(name: str) -> bool:
    """A few parameters inside some blocks: nothing of the first one, nothing outside."""
    return "blocks.1." in name and ("qkv" in name or "out" in name)


CASES = {
    "plain": Case(),
    "full": Case(checkpointing="full"),
    "attention": Case(checkpointing="attention"),
    "few": Case(trained=few),
    "lora": Case(lora=ADAPTED),
    "lora, full": Case(lora=ADAPTED, checkpointing="full"),
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


QUICK = {("plain", "hsdp", 3), ("full", "fsdp", 4), ("few", "hsdp", 4), ("float32", "fsdp", 2), ("lora", "fsdp", 3)}
PLACES = [("fsdp", 2), ("fsdp", 3), ("fsdp", 4), ("hsdp", 3), ("hsdp", 4)]  # hsdp on 2 ranks of 2 nodes is replicated
ALL = [("plain", "hsdp", 2), ("few", "hsdp", 4), *((c, *place) for c in CASES if c != "few" for place in PLACES)]


@pytest.mark.parametrize(
    ("case", "layout", "world"), [pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow) for c in ALL]
)
def test_twenty_steps_equal_those_of_one_process(
    cache: LatentCache, alone: Callable[[str], Run], case: str, layout: str, world: int
) -> None:
    bound = FLOAT32 if case.startswith("float32") else FLOAT64
    check(train(cache, CASES[case], layout, world), alone(case), bound)


def mixed(checkpointing: str) -> Case:
    return Case(torch.float32, "bfloat16", checkpointing, optimizer={"lr": 1e-3})


@pytest.fixture(scope="module")
def replicated(cache: LatentCache) -> Callable[[str, int], Run]:
    return functools.cache(lambda checkpointing, world: train(cache, mixed(checkpointing), "replicated", world))


@pytest.mark.parametrize(
    ("checkpointing", "layout", "world"),
    [
        pytest.param(c, layout, world, marks=() if (c, layout, world) == ("full", "hsdp", 3) else pytest.mark.slow)
        for c in ("none", "full")
        for layout, world in PLACES[:2] + PLACES[3:4]
    ],
)
def test_in_bfloat16_twenty_steps_equal_those_of_replicas_with_the_same_plans(
    cache: LatentCache, replicated: Callable[[str, int], Run], checkpointing: str, layout: str, world: int
) -> None:
    """Only the order of float32 sums differs. Other plans round otherwise: by about 1e-2 of the weights."""
    check(train(cache, mixed(checkpointing), layout, world), replicated(checkpointing, world), FLOAT32)


@pytest.mark.parametrize("layout", layouts)
def test_the_logged_norm_and_the_clipped_gradients_are_those_of_one_process(cache: LatentCache, layout: str) -> None:
    def gradients(rank: int, comm: Comm) -> tuple[float, dict[str, torch.Tensor]]:
        runner, peers = make_runner(cache, Case(), layout), comm if comm.size > 1 else None
        runner.state.settle(peers, nodes_of(comm.size), 0)
        _, norm = one_step(runner, cache, peers)
        pairs = [pair for u in runner.state.layout.units for pair in u.by_name(u.whole_of(u.own_grad, comm))]
        return norm, dict(pairs)

    ((norm, clipped),) = run_ranks(1, gradients)
    length = torch.stack([g.square().sum() for g in clipped.values()]).sum().sqrt()
    assert norm > 2 * Case().clip and float(length) == pytest.approx(Case().clip, rel=1e-12)
    for other, grads in run_ranks(3, gradients):
        assert other == pytest.approx(norm, rel=1e-12)
        assert max(float((grads[n] - g).abs().max()) for n, g in clipped.items()) <= 1e-12 * Case().clip
