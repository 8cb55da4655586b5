"""Memory of a sharded state: what persists falls as one over those who share it, and what is gathered is foreseen."""

from __future__ import annotations

import pytest
import torch

from tests.actors.tiny_data import write_cache
from tests.training.layouts.small import Case, make_runner, nodes_of, one_step
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.data.cache import LatentCache
from zellige_ray.training.layouts.copies import stride
from zellige_ray.training.layouts.units import Unit
from zellige_ray.training.state import TrainState

CASE = Case(layers=8)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


def live_bytes(state: TrainState) -> int:
    """Of all storages that hold parameters, gradients, optimizer and EMA, each once; its counters are a few bytes."""
    tensors: list[torch.Tensor] = list(state.ema.values())
    for unit in state.layout.units:
        tensors += [unit.own, unit.own_grad, unit._whole, *([] if unit._grads is None else [unit._grads])]
    for moments in state.optimizer.state.values():
        tensors += [t for t in moments.values() if t.ndim]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


@pytest.mark.dist
def test_what_persists_falls_as_one_over_those_who_share_it_and_the_peak_is_the_foreseen_one(
    cache: LatentCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: dict[int, list[int]] = {}
    states: dict[int, TrainState] = {}
    plain = Unit.open

    def watch(unit: Unit) -> None:
        plain(unit)
        rank = next(r for r, s in states.items() if any(u is unit for u in s.layout.units))
        watched[rank].append(live_bytes(states[rank]))

    monkeypatch.setattr(Unit, "open", watch)

    def measure(world: int, layout: str) -> list[tuple[int, int, int]]:
        def body(rank: int, comm: Comm) -> tuple[int, int, int]:
            runner, peers = make_runner(cache, CASE, layout), comm if comm.size > 1 else None
            runner.state.settle(peers, nodes_of(world), 0)
            states[rank], watched[rank] = runner.state, []
            comm.barrier()
            one_step(runner, cache, peers)
            watched[rank].clear()
            one_step(runner, cache, peers)
            return live_bytes(runner.state), max(watched[rank]), runner.state.bytes_at(runner.state.layout.place)

        return run_ranks(world, body)

    ((whole, _, foreseen),) = measure(1, "fsdp")
    assert abs(foreseen - whole) <= 0.015 * whole
    for world, layout, sharers in ((2, "fsdp", 2), (3, "fsdp", 3), (4, "fsdp", 4), (4, "hsdp", 2)):
        for persistent, peak, foreseen in measure(world, layout):
            assert abs(persistent - whole / sharers) <= 0.05 * whole / sharers
            assert abs(foreseen - peak) <= 0.015 * peak


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [((0, 0, 0), 1), ((0, 0, 1, 1), 2), ((0, 1, 2), 1), ((0, 0, 0, 1, 1, 1), 3), ((0,), 0), ((0, 1), 1)],
)
def test_a_copy_is_kept_on_another_node_where_there_is_one(nodes: tuple[int, ...], expected: int) -> None:
    assert stride(nodes) == expected
