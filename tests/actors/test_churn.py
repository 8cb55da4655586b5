"""Sixty steps with deaths in every phase of a step, and joins: the curve is that of an undisturbed run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.actors.doom import BESIDE, DRIVERS, REGROUP, STEP, Died, Doom, Pool, Timetable, planted
from tests.actors.local_pool import LocalPool
from tests.actors.test_invariance import TEXT_DIM, curve, make_config, resumed, train, worst
from tests.actors.tiny_data import write_cache
from zellige_ray.actors.driver import Driver, Start
from zellige_ray.actors.memory import remember
from zellige_ray.config import RunConfig
from zellige_ray.data.audit import verify
from zellige_ray.data.cache import LatentCache
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, MembershipEvent, StepEvent
from zellige_ray.monitor.metrics import JsonLines

pytestmark = pytest.mark.dist
STEPS, TOKEN = 60, "abc"
SETTINGS: dict[str, Any] = {
    "steps": STEPS,
    "model": {"name": "dit", "layers": 1, "heads": 3, "head_dim": 12},
    "optimizer": {"lr": 3e-3},
    "placement": {"hardware": "cpu", "policy": "cp"},  # every sequence is exchanged
}
BOUNDS = {"float64": 1e-10, "float32": 1e-5}
# worker-0, -1, -2, -3 begin; two take the places of the dead behind step 32; the driver dies twice where it is named
RUNS: dict[str, tuple[Timetable, dict[int, int]]] = {
    "while it computes": (
        {"worker-1": ("forward", 11), "worker-0": ("exchange", 21), "worker-2": ("backward", 45)},
        {32: 2},
    ),
    "around the vote": (
        {"worker-1": ("reduce", 11), "worker-0": ("reduced", 21), "worker-2": ("voted", 45)},
        {32: 2},
    ),
    "around the commit": (
        {"worker-1": ("commit", 10), "worker-0": ("apply", 20), "worker-2": ("planning", 44)},
        {32: 2},
    ),
    # a newcomer behind step 20: worker-3 dies while the epoch with it forms, worker-0 while it hands its state over
    "while an epoch forms": (
        {"worker-1": ("start", 10), "worker-3": ("join", 20), "worker-0": ("take_over", 20), "worker-2": ("start", 44)},
        {20: 1, 32: 2},
    ),
}
DRIVER_DEATHS = {"around the commit": [("append", 15), ("appended", 40)]}
SIZES = {10: 4, 11: 3, 30: 2, 33: 4, 60: 3}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


@pytest.fixture
def doom() -> Iterator[Doom]:
    with planted() as doom:
        yield doom


@pytest.fixture(scope="module")
def undisturbed(cache: LatentCache, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    curves = {}
    for dtype in BOUNDS:
        config = make_config(cache, 1, **SETTINGS, engine={"dtype": dtype})
        events, _ = train(tmp_path_factory.mktemp(dtype), cache, config, LocalPool(config, str(cache.folder)))
        curves[dtype] = curve(events)
    return curves


def churn(
    folder: Path, cache: LatentCache, config: RunConfig, doom: Doom, joins: dict[int, int]
) -> tuple[list[Event], dict[str, Any], Pool]:
    """joins: step -> how many workers become ready behind it. A driver that dies is followed by another."""
    pool = Pool(doom, config, str(cache.folder))
    events: list[Event] = []
    index, held_out = cache.index().split(config.data.held_out, config.seed)
    while True:
        with JsonLines(folder / run_folder.METRICS) as sink:

            def emit(event: Event, sink: JsonLines = sink) -> None:
                events.append(event)
                sink.see(event)
                if isinstance(event, StepEvent):
                    pool.spares += joins.get(event.step, 0)

            memory = remember(folder, TOKEN, 0) if events else None
            driver = Driver(config, folder, pool, index, held_out, TEXT_DIM, Start(), emit, TOKEN, memory)
            try:
                return events, driver.run(), pool
            except Died:
                continue


def test_the_runs_below_kill_in_every_phase() -> None:
    phases = {phase for timetable, _ in RUNS.values() for phase, _ in timetable.values()}
    assert phases == {*STEP, *REGROUP, *BESIDE}
    assert {phase for deaths in DRIVER_DEATHS.values() for phase, _ in deaths} == set(DRIVERS)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", RUNS)
def test_four_three_two_four_three_workers_give_the_curve_of_an_undisturbed_run(
    cache: LatentCache, undisturbed: dict[str, list[float]], tmp_path: Path, doom: Doom, name: str, dtype: str
) -> None:
    timetable, joins = RUNS[name]
    doom.timetable, doom.drivers = dict(timetable), list(DRIVER_DEATHS.get(name, ()))
    config = make_config(cache, 4, **SETTINGS, engine={"dtype": dtype})
    events, summary, pool = churn(tmp_path, cache, config, doom, joins)
    assert sorted(doom.struck) == sorted(p for p, _ in [*timetable.values(), *DRIVER_DEATHS.get(name, ())])
    steps = [e for e in events if isinstance(e, StepEvent)]
    assert [e.step for e in steps] == list(range(1, STEPS + 1))
    assert {s: steps[s - 1].world_size for s in SIZES} == SIZES
    assert worst(curve(events), undisturbed[dtype]) <= BOUNDS[dtype]
    left = [e.worker for e in events if isinstance(e, MembershipEvent) and e.change == "left"]
    assert sorted(left) == sorted(timetable)
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (STEPS, 0, 0)
    assert verify(tmp_path / run_folder.LEDGER).ok
    states = [w._state.tensors() for w in pool.workers.values() if w._epoch == steps[-1].epoch]
    assert len(states) == 3
    for state in states[1:]:
        assert all(torch.equal(a, b) for a, b in zip(state, states[0], strict=True))


@pytest.mark.parametrize("workers", [1, 3, 5])
def test_resumed_with_another_number_of_workers_the_curve_goes_on(
    cache: LatentCache, tmp_path: Path, workers: int
) -> None:
    (tmp_path / "alone").mkdir()
    settings: dict[str, Any] = {"placement": {"hardware": "cpu"}}
    config = make_config(cache, 1, steps=12, **settings)
    whole, _ = train(tmp_path / "alone", cache, config, LocalPool(config, str(cache.folder)))
    config = make_config(cache, 2, steps=7, **settings)
    run = tmp_path / "run"
    run.mkdir()
    first, _ = train(run, cache, config, LocalPool(config, str(cache.folder)))
    config = make_config(cache, workers, steps=12, **settings)
    events, summary = train(run, cache, config, LocalPool(config, str(cache.folder)), resumed(run))
    assert worst([*curve(first), *curve(events)], curve(whole)) <= 1e-10
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (12, 0, 0)
