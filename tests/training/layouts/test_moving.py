"""A state moves from any world and layout to any other, and goes on as if it had always been there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from tests.actors.tiny_data import write_cache
from tests.training.layouts.small import Case, flat, make_runner, nodes_of, one_step, worst
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.data.cache import LatentCache
from zellige_ray.training.layouts import Place, layouts
from zellige_ray.training.layouts.content import Content
from zellige_ray.training.layouts.moving import Holding, newest, plan
from zellige_ray.training.layouts.replicas import shares

PLACES = [(world, layout) for world in (1, 2, 3, 4) for layout in layouts]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


@pytest.fixture(scope="module")
def alone(cache: LatentCache) -> Callable[[int], dict[str, torch.Tensor]]:
    """The whole state of one process after six steps of a model with so many layers."""

    def train(layers: int) -> dict[str, torch.Tensor]:
        runner = make_runner(cache, Case(layers=layers), "replicated")
        for _ in range(6):
            one_step(runner, cache, None)
        return flat(runner.state.full_state_dict(None))

    return functools.cache(train)


def moved(
    cache: LatentCache, layers: int, first: tuple[int, str], seconds: list[tuple[int, str]]
) -> list[dict[str, torch.Tensor]]:
    """The whole state after two steps in one place and four in another, for each of others; all begin from the same."""
    store = HashStore()

    def body(rank: int, comm: Comm) -> list[dict[str, torch.Tensor]]:
        state = (runner := make_runner(cache, Case(layers=layers), first[1])).state

        def train(steps: int, world: int, epoch: int) -> list[dict[str, torch.Tensor]]:
            if rank >= world:
                return []
            peers = Comm.create(store, epoch, rank, world) if world > 1 else None
            for _ in range(steps):
                one_step(runner, cache, peers)
            whole = flat(state.full_state_dict(peers))
            if peers is not None:
                peers.close()
            return [whole]

        assert state.settle(comm, nodes_of(first[0]), 0) == 0
        train(2, first[0], 1)
        place, step, kept = state.layout.place, state.step, copies(state.contents())
        out = []
        for number, (world, layout) in enumerate(seconds):
            assert state.settle(comm, nodes_of(world), 2, layout=layout) == 2
            out += train(4, world, 2 + number)
            state.hold(place, step, copies(kept))
            comm.barrier()
        return out

    return run_ranks(max(world for world, _ in [first, *seconds]), body, store=store)[0]


def copies(contents: Sequence[Content]) -> list[Content]:
    return [Content({k: v.clone() for k, v in c.vectors.items()}, c.counters) for c in contents]


def holdings(world: int, layout: str, step: int) -> list[tuple[Holding, ...]]:
    return [(Holding(step, Place(layout, nodes_of(world), rank), (), ()),) for rank in range(world)]


@pytest.mark.parametrize("second", PLACES, ids=str)
@pytest.mark.parametrize("first", PLACES, ids=str)
def test_every_element_of_a_new_interval_comes_once_from_a_rank_that_holds_it(
    first: tuple[int, str], second: tuple[int, str]
) -> None:
    table, target = tuple(holdings(*first, 5)), Place(second[1], nodes_of(second[0]))
    for num in (1, 3, 10, 97):
        for rank, routes in enumerate(plan(table, 5, target, num)):
            start, stop = target.of(rank).interval(num)
            assert [i for a, b, _, _ in routes for i in range(a, b)] == list(range(start, stop))
            for a, b, source, which in routes:
                held = table[source][which].place.interval(num)
                assert held[0] <= a < b <= held[1]


def test_the_newest_step_that_the_ranks_hold_together_is_taken_and_none_when_a_part_is_gone() -> None:
    now, before = holdings(3, "fsdp", 7), holdings(3, "fsdp", 4)
    whole = tuple(a + b for a, b in zip(now, before, strict=True))
    assert newest(whole, 9, [10]) == 7
    assert newest(whole, 6, [10]) == 4
    assert newest((now[0], now[1] + before[1] + before[0], before[2]), 7, [10]) == 4
    assert newest((now[0], now[1] + before[1] + before[0], ()), 7, [10]) is None


@pytest.mark.parametrize("world", [2, 3, 4, 5])
@pytest.mark.parametrize("layout", ["replicated", "hsdp"])
@pytest.mark.parametrize("num", [1, 5, 23])
def test_every_element_has_one_adder_that_all_its_holders_agree_on(world: int, layout: str, num: int) -> None:
    adders: dict[int, set[int]] = {}
    for rank in range(world):
        place = Place(layout, nodes_of(world), rank)
        start, stop = place.interval(num)
        mine = shares(place, num)
        assert [i for s in mine for i in range(s.start, s.stop)] == list(range(start, stop))
        for share in mine:
            assert share.adder in share.holders and rank in share.holders
            assert len(share.holders) == len(place.groups)
            for i in range(share.start, share.stop):
                adders.setdefault(i, set()).add(share.adder)
    assert all(len(a) == 1 for a in adders.values()) and len(adders) == num


@pytest.mark.dist
@pytest.mark.parametrize(
    ("first", "second"),
    [((4, "fsdp"), (3, "hsdp")), ((1, "replicated"), (4, "fsdp")), ((3, "hsdp"), (2, "replicated"))],
)
def test_a_state_moves_and_four_more_steps_are_those_of_one_process(
    cache: LatentCache, alone: Callable[[int], Any], first: tuple[int, str], second: tuple[int, str]
) -> None:
    (whole,) = moved(cache, 2, first, [second])
    assert worst(whole, alone(2)) <= 1e-12


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("first", PLACES, ids=str)
def test_a_state_moves_from_any_world_and_layout_to_any_other(
    cache: LatentCache, alone: Callable[[int], Any], first: tuple[int, str]
) -> None:
    for second, whole in zip(PLACES, moved(cache, 1, first, PLACES), strict=True):
        assert worst(whole, alone(1)) <= 1e-12, second
