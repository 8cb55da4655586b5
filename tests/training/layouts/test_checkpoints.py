"""Checkpoints: written by the ranks that hold the parts, read by any number of ranks in any layout, by others whole."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.actors.tiny_data import write_cache
from tests.training.layouts.small import Case, flat, make_runner, nodes_of, one_step, worst
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.data.cache import LatentCache
from zellige_ray.errors import CheckpointError
from zellige_ray.training import checkpoint_io
from zellige_ray.training.checkpoint_rows import boxes
from zellige_ray.training.layouts import Place, layouts

PLACES = [(world, layout) for world in (1, 2, 3, 4) for layout in layouts]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


def train(
    cache: LatentCache, world: int, layout: str, num: int, read: Path | None, write: Path | None, layers: int = 2
) -> Any:
    """`num` steps from a checkpoint or the start; the whole state behind them, which is also written."""

    def body(rank: int, comm: Comm) -> Any:
        runner, peers = make_runner(cache, Case(layers=layers), layout), comm if comm.size > 1 else None
        runner.state.settle(peers, nodes_of(world), 0)
        if read is not None:
            checkpoint_io.load(str(read), runner.state)
        for _ in range(num):
            one_step(runner, cache, peers)
        if write is not None:
            checkpoint_io.save(str(write), runner.state)
            comm.barrier()
            if rank == 0:
                checkpoint_io.assemble(str(write), len(Place(layout, nodes_of(world)).groups[0]))
        return flat(runner.state.full_state_dict(peers))

    return run_ranks(world, body)[0]


def there_and_back(cache: LatentCache, folder: Path, first: tuple[int, str], second: tuple[int, str]) -> Any:
    folder.mkdir()
    train(cache, *first, 2, None, folder)
    return train(cache, *second, 4, folder, None)


@pytest.mark.dist
def test_a_sharded_checkpoint_goes_on_in_another_world_and_opens_whole_in_plain_torch(
    cache: LatentCache, tmp_path: Path
) -> None:
    alone = train(cache, 1, "replicated", 6, None, None)
    assert worst(there_and_back(cache, tmp_path / "a", (3, "fsdp"), (4, "hsdp")), alone) <= 1e-12
    saved = train(cache, 1, "replicated", 2, None, None)
    into = {name: torch.zeros_like(value) for name, value in saved.items() if name.startswith("model.")}
    dcp.load(into, storage_reader=dcp.FileSystemReader(tmp_path / "a"), no_dist=True)
    assert all(float((into[n] - saved[n]).abs().max()) <= 1e-12 for n in into)
    assert len(list((tmp_path / "a").glob("part-*"))) == 3


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("first", PLACES, ids=str)
def test_a_checkpoint_goes_from_any_world_and_layout_to_any_other(
    cache: LatentCache, tmp_path: Path, first: tuple[int, str]
) -> None:
    saved = train(cache, *first, 2, None, tmp_path, layers=1)
    alone = train(cache, 1, "replicated", 3, None, None, layers=1)
    for world in (1, 2, 3, 4):

        def body(rank: int, comm: Comm, world: int = world) -> None:
            runner, peers = make_runner(cache, Case(layers=1), "replicated"), comm if comm.size > 1 else None
            state = runner.state
            for layout in layouts:
                assert state.settle(peers, nodes_of(world), state.step, layout=layout) == state.step
                checkpoint_io.load(str(tmp_path), state)
                loaded = flat(state.full_state_dict(peers))
                assert loaded.keys() == saved.keys() and all(torch.equal(loaded[n], saved[n]) for n in saved), layout
                one_step(runner, cache, peers)
                assert worst(flat(state.full_state_dict(peers)), alone) <= 1e-12, layout

        run_ranks(world, body)


def test_a_checkpoint_without_a_tensor_of_the_model_is_refused_by_name(cache: LatentCache, tmp_path: Path) -> None:
    checkpoint_io.save(str(tmp_path), make_runner(cache, Case(layers=1), "replicated").state)
    with pytest.raises(CheckpointError, match=r"missing: model\.blocks\.1\.[a-z_.]+, .* and \d+ more"):
        checkpoint_io.load(str(tmp_path), make_runner(cache, Case(layers=2), "replicated").state)


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 4), (1, 1, 5), (4, 1)])
def test_boxes_of_an_interval_are_its_elements_in_order(shape: tuple[int, ...]) -> None:
    num = math.prod(shape)
    whole = torch.arange(num).view(shape)
    for start in range(num + 1):
        for stop in range(start, num + 1):
            seen: list[int] = []
            for offsets, sizes, at in boxes(start, stop, shape):
                assert at == len(seen)
                part = whole
                for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
                    part = part.narrow(dim, offset, size)
                seen += part.reshape(-1).tolist()
            assert seen == list(range(start, stop))
            assert len(boxes(start, stop, shape)) <= 2 * len(shape) + 1
