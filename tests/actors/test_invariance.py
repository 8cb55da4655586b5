"""World-size invariance: the loss curve is a property of the data and the seed, not of who computes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.actors.local_pool import LocalPool
from tests.actors.tiny_data import TEXT_DIM, write_cache
from zellige_ray.actors.driver import Driver, Start
from zellige_ray.config import RunConfig, parse_config
from zellige_ray.data.cache import LatentCache
from zellige_ray.data.sampler import SamplerState
from zellige_ray.monitor.events import Event, MembershipEvent, StepEvent
from zellige_ray.training.checkpoint_files import newest, read_position

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


def make_config(cache: LatentCache, workers: int, **settings: Any) -> RunConfig:
    return parse_config(
        {
            "steps": 30,
            "evaluate_every": 1000,
            "compare_batches": 0,
            "data": {"source": str(cache.folder), "cache": str(cache.folder), "held_out": 2},
            "batch": {"samples": 4},
            "model": {"name": "dit", "layers": 2, "heads": 3, "head_dim": 12, "checkpointing": "full"},
            "engine": {"dtype": "float64"},
            "optimizer": {"lr": 0.01},
            "workers": {"count": workers, "ping_timeout_s": 5, "comm_timeout_s": 20},
            "checkpoint": {"every": 1000},
            "preview": {"every": None},
            **settings,
        }
    )


def train(
    folder: Path, cache: LatentCache, config: RunConfig, pool: LocalPool, start: Start | None = None
) -> tuple[list[Event], dict[str, Any]]:
    events: list[Event] = []
    index, held_out = cache.index().split(config.data.held_out, config.seed)
    driver = Driver(config, folder, pool, index, held_out, TEXT_DIM, start or Start(), events.append)
    return events, driver.run()


def resumed(folder: Path) -> Start:
    """From the newest checkpoint of a run."""
    checkpoint = newest(folder)
    assert checkpoint is not None
    position = read_position(checkpoint)
    return Start(position.step, SamplerState.from_json(position.sampler), str(checkpoint))


def curve(events: list[Event]) -> list[float]:
    return [e.loss for e in events if isinstance(e, StepEvent)]


def parameters(pool: LocalPool, worker: str) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in pool.workers[worker]._module.parameters()])


def worst(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def alone(cache: LatentCache, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    config = make_config(cache, 1)
    events, _ = train(tmp_path_factory.mktemp("alone"), cache, config, LocalPool(config, str(cache.folder)))
    losses = curve(events)
    assert losses[-1] < 0.97 * losses[0]  # it learns, so that a wrong gradient would show
    return losses


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_thirty_steps_give_the_same_losses_on_any_number_of_workers(
    cache: LatentCache, alone: list[float], workers: int, tmp_path: Path
) -> None:
    config = make_config(cache, workers)
    pool = LocalPool(config, str(cache.folder))
    events, summary = train(tmp_path, cache, config, pool)
    assert worst(curve(events), alone) <= 1e-10
    assert summary["world_sizes"] == [workers]
    assert any(e.measured[0].exchange_s > 0 for e in events if isinstance(e, StepEvent))  # something was shared


def test_the_same_run_twice_is_bitwise_the_same(cache: LatentCache, tmp_path: Path) -> None:
    config, ends = make_config(cache, 3, steps=6, placement={"hardware": "cpu"}), []  # measured rates would differ
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        pool = LocalPool(config, str(cache.folder))
        events, _ = train(tmp_path / name, cache, config, pool)
        ends.append((curve(events), parameters(pool, "worker-1").numpy().tobytes()))
    assert ends[0] == ends[1]


def test_losing_and_gaining_workers_does_not_change_the_curve(
    cache: LatentCache, alone: list[float], tmp_path: Path
) -> None:
    """4 -> 3 -> 2 -> 3 workers: two die before a step, one replacement comes."""

    def kill(worker: str, method: str, nth: int) -> bool:
        return method == "step" and (worker, nth) in {("worker-1", 5), ("worker-0", 12)}

    config = make_config(cache, 4)
    pool = LocalPool(config, str(cache.folder), kill, spares=1)
    events, summary = train(tmp_path, cache, config, pool)
    assert worst(curve(events), alone) <= 1e-10
    assert (summary["samples_lost"], summary["samples_doubled"], summary["replans"]) == (0, 0, 2)
    assert [e.change for e in events if isinstance(e, MembershipEvent)] == ["left", "joined", "left"]
    assert torch.equal(parameters(pool, "worker-2"), parameters(pool, "worker-4"))
