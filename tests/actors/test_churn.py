"""Sixty steps with deaths in every phase of a step, and joins: the curve is that of an undisturbed run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.actors.local_pool import Killed, LocalPool
from tests.actors.test_invariance import TEXT_DIM, curve, make_config, train, worst
from tests.actors.tiny_data import write_cache
from zellige_ray.actors.driver import Driver, Start
from zellige_ray.attention.comm import Comm
from zellige_ray.config import RunConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.monitor.events import Event, MembershipEvent, StepEvent
from zellige_ray.training.layouts import Layout
from zellige_ray.training.state import TrainState

pytestmark = pytest.mark.dist
PHASES = ("start", "exchange", "reduce", "voted", "apply", "join", "take_over")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


class Doom:
    """Which worker dies in which phase of which step; the step is the one it has applied so far, plus one."""

    def __init__(self, timetable: dict[str, tuple[str, int]]) -> None:
        self.timetable = dict(timetable)
        self.pool: LocalPool | None = None
        self.struck: list[str] = []

    def due(self, phase: str) -> bool:
        worker = threading.current_thread().name.partition("_")[0]
        wanted = self.timetable.get(worker)
        if self.pool is None or wanted is None or worker not in self.pool.workers:
            return False
        return wanted[0] == phase and self.pool.workers[worker]._state.step + 1 >= wanted[1]

    def strike(self, phase: str) -> None:
        if self.due(phase):
            del self.timetable[threading.current_thread().name.partition("_")[0]]
            self.struck.append(phase)
            raise Killed


@pytest.fixture
def doom(monkeypatch: pytest.MonkeyPatch) -> Doom:
    doom = Doom({})

    def before(owner: Any, method: str, phase: str) -> None:
        original = getattr(owner, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            doom.strike(phase)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, method, wrapped)

    before(Comm, "exchange", "exchange")
    before(Comm, "transfer", "take_over")
    before(TrainState, "apply", "apply")
    original = Layout.reduce

    def reduce(self: Any, comm: Any) -> None:
        if comm is not None and doom.due("reduce"):
            comm.all_reduce(self.units[0].own_grad)  # it has begun, and its peers wait for the rest
        doom.strike("reduce")
        original(self, comm)

    monkeypatch.setattr(Layout, "reduce", reduce)
    return doom


class Pool(LocalPool):
    """Workers that die by the timetable."""

    doom: Doom

    def _run(self, name: str, method: str, args: tuple[Any, ...]) -> Any:
        phase = {"step": "start", "join": "join"}.get(method)
        try:
            if phase is not None:
                self.doom.strike(phase)
            answer = super()._run(name, method, args)
            if method == "step":
                self.doom.strike("voted")
            return answer
        except Killed:
            self.workers[name].close()
            raise


def churn(
    folder: Path, cache: LatentCache, config: RunConfig, doom: Doom, joins: dict[int, int]
) -> tuple[list[Event], dict[str, Any], Pool]:
    """joins: step -> how many workers become ready after it."""
    pool = Pool(config, str(cache.folder))
    pool.doom, doom.pool = doom, pool
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepEvent):
            pool.spares += joins.get(event.step, 0)

    index, held_out = cache.index().split(config.data.held_out, config.seed)
    summary = Driver(config, folder, pool, index, held_out, TEXT_DIM, Start(), emit).run()
    return events, summary, pool


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-10), ("float32", 1e-5)])
def test_four_three_two_four_three_workers_give_the_curve_of_an_undisturbed_run(
    cache: LatentCache, tmp_path: Path, doom: Doom, dtype: str, bound: float
) -> None:
    settings: dict[str, Any] = {"steps": 60, "engine": {"dtype": dtype}, "optimizer": {"lr": 3e-3}}
    alone = make_config(cache, 1, **settings)
    (tmp_path / "alone").mkdir()
    undisturbed, _ = train(tmp_path / "alone", cache, alone, LocalPool(alone, str(cache.folder)))
    doom.timetable = {"worker-1": ("reduce", 11), "worker-0": ("apply", 21), "worker-2": ("voted", 45)}
    events, summary, pool = churn(tmp_path, cache, make_config(cache, 4, **settings), doom, {32: 2})
    sizes = [e.world_size for e in events if isinstance(e, StepEvent)]
    assert [sizes[s - 1] for s in (10, 11, 30, 33, 60)] == [4, 3, 2, 4, 3]
    assert worst(curve(events), curve(undisturbed)) <= bound
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (60, 0, 0)
    alive = [pool.workers[w] for w in pool.workers if pool.workers[w]._epoch == summary_epoch(events)]
    assert len(alive) == 3
    for worker in alive[1:]:
        mine, theirs = worker._state.tensors(), alive[0]._state.tensors()
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def summary_epoch(events: list[Event]) -> int:
    return [e.epoch for e in events if isinstance(e, StepEvent)][-1]


@pytest.mark.parametrize("phase", PHASES)
def test_a_death_in_any_phase_of_a_step_loses_and_doubles_nothing(
    cache: LatentCache, tmp_path: Path, doom: Doom, phase: str
) -> None:
    """`join` and `take_over`: worker-0 dies first, and a second one dies while the next epoch forms."""
    second = phase in ("join", "take_over")
    doom.timetable = {"worker-1": (phase, 3)} | ({"worker-0": ("start", 3)} if second else {})
    config = make_config(cache, 3, steps=8, placement={"policy": "cp"})  # every sequence is exchanged
    events, summary, _ = churn(tmp_path, cache, config, doom, {3: 2} if phase == "take_over" else {})
    assert doom.struck[-1] == phase or phase in doom.struck
    left = [e.worker for e in events if isinstance(e, MembershipEvent) and e.change == "left"]
    assert sorted(left) == (["worker-0", "worker-1"] if second else ["worker-1"])
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (8, 0, 0)


@pytest.mark.parametrize("workers", [1, 3, 5])
def test_resumed_with_another_number_of_workers_the_curve_goes_on(
    cache: LatentCache, tmp_path: Path, workers: int
) -> None:
    from zellige_ray.data.sampler import SamplerState
    from zellige_ray.training.checkpoint_files import newest, read_position

    (tmp_path / "alone").mkdir()
    config = make_config(cache, 1, steps=12)
    whole, _ = train(tmp_path / "alone", cache, config, LocalPool(config, str(cache.folder)))
    config = make_config(cache, 2, steps=7)
    run = tmp_path / "run"
    run.mkdir()
    first, _ = train(run, cache, config, LocalPool(config, str(cache.folder)))
    checkpoint = newest(run)
    assert checkpoint is not None
    position = read_position(checkpoint)
    start = Start(position.step, SamplerState.from_json(position.sampler), str(checkpoint))
    config = make_config(cache, workers, steps=12)
    index, held_out = cache.index().split(config.data.held_out, config.seed)
    events: list[Event] = []
    pool = LocalPool(config, str(cache.folder))
    summary = Driver(config, run, pool, index, held_out, TEXT_DIM, start, events.append).run()
    assert worst([*curve(first), *curve(events)], curve(whole)) <= 1e-10
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (12, 0, 0)
