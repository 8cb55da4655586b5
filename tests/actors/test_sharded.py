"""Sharded state under the driver: ranks die in every phase, no checkpoint is read, and the curve stays what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.actors.doom import Doom
from tests.actors.local_pool import LocalPool
from tests.actors.test_churn import churn, doom  # noqa: F401  (a fixture)
from tests.actors.test_invariance import curve, make_config, train, worst
from tests.actors.tiny_data import TEXT_DIM, write_cache
from zellige_ray.actors.driver import Driver, Start
from zellige_ray.config import RunConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.data.ledger import read, verify
from zellige_ray.errors import ModelError
from zellige_ray.monitor.events import Event, NoteEvent, StepEvent
from zellige_ray.training import checkpoint_io

pytestmark = pytest.mark.dist
STEPS, EVERY = 10, 3
QUIET: dict[str, Any] = {"steps": STEPS, "placement": {"hardware": "cpu", "policy": "cp"}}  # all is exchanged
SETTINGS: dict[str, Any] = {**QUIET, "state": {"layout": "fsdp", "every": EVERY}}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


@pytest.fixture(scope="module")
def alone(cache: LatentCache, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    config = make_config(cache, 1, **QUIET)
    return curve(train(tmp_path_factory.mktemp("alone"), cache, config, LocalPool(config, str(cache.folder)))[0])


def last_of_each(events: list[Event]) -> list[float]:
    """The losses of the steps that count: of one that was run again, the later one."""
    losses = {e.step: e.loss for e in events if isinstance(e, StepEvent)}
    return [losses[s] for s in sorted(losses)]


def run(
    cache: LatentCache, folder: Path, config: RunConfig, pool: LocalPool, at: Callable[[Event], None] = lambda e: None
) -> tuple[list[Event], dict[str, Any]]:
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        at(event)

    index, held_out = cache.index().split(config.data.held_out, config.seed)
    summary = Driver(config, folder, pool, index, held_out, TEXT_DIM, Start(), emit).run()
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (STEPS, 0, 0)
    assert verify(folder / "ledger.jsonl", index.ids).ok
    return events, summary


def replayed(events: list[Event]) -> int:
    return sum(isinstance(e, StepEvent) for e in events) - STEPS


QUICK = {"reduce"}
PHASES = ["start", "exchange", "reduce", "voted", "apply", "join"]


@pytest.mark.parametrize("phase", [pytest.param(p, marks=() if p in QUICK else pytest.mark.slow) for p in PHASES])
def test_the_death_of_one_of_four_ranks_in_any_phase_goes_back_to_copies_and_replays_few_steps(
    cache: LatentCache,
    alone: list[float],
    tmp_path: Path,
    doom: Doom,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
) -> None:
    monkeypatch.setattr(checkpoint_io, "load", lambda *_: pytest.fail("a checkpoint was read"))
    doom.timetable = {"worker-2": ("voted" if phase == "join" else phase, 6)}
    if phase == "join":
        doom.timetable["worker-0"] = ("join", 6)  # worker-1 keeps its copy, worker-3 that of worker-2
    events, summary, _ = churn(tmp_path, cache, make_config(cache, 4, **SETTINGS), doom, {})
    assert worst(last_of_each(events), alone) <= 1e-10
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (STEPS, 0, 0)
    rewinds = [r for r in read(tmp_path / "ledger.jsonl") if r.event == "rewind"]
    assert [r.step for r in rewinds] == [3] and 0 < replayed(events) <= EVERY
    index, _ = cache.index().split(2, 0)
    assert verify(tmp_path / "ledger.jsonl", index.ids).ok


def dies_at(worker: str, step: int) -> Callable[[str, str, int], bool]:
    return lambda w, method, nth: (w, method, nth) == (worker, "step", step)


def test_a_rank_of_another_node_holds_the_same_where_nodes_hold_copies_and_nothing_is_run_again(
    cache: LatentCache, alone: list[float], tmp_path: Path
) -> None:
    config = make_config(cache, 4, **QUIET, state={"layout": "hsdp"})
    pool = LocalPool(config, str(cache.folder), dies_at("worker-1", 6), 0, lambda n: f"node-{n // 2}")
    events, _ = run(cache, tmp_path, config, pool)
    assert worst(curve(events), alone) <= 1e-10
    assert [e.world_size for e in events if isinstance(e, StepEvent)] == [4] * 5 + [3] * 5


def test_a_part_that_dies_with_its_copy_is_read_from_the_newest_checkpoint(
    cache: LatentCache, alone: list[float], tmp_path: Path
) -> None:
    """On four ranks of one node, the next rank keeps the copy."""

    def kill(worker: str, method: str, nth: int) -> bool:
        return worker in ("worker-1", "worker-2") and method == "step" and nth == 8

    config = make_config(cache, 4, **SETTINGS, checkpoint={"every": 5})
    events, _ = run(cache, tmp_path, config, LocalPool(config, str(cache.folder), kill))
    assert worst(last_of_each(events), alone) <= 1e-10
    (note,) = [e.text for e in events if isinstance(e, NoteEvent) and "a part of the state was lost" in e.text]
    assert "2 steps to be replayed from step-00000005" in note


def test_workers_come_and_leave_in_time_and_hand_over_what_they_hold(
    cache: LatentCache, alone: list[float], tmp_path: Path
) -> None:
    config = make_config(cache, 3, **QUIET, state={"layout": "fsdp", "redundancy": 1})
    pool = LocalPool(config, str(cache.folder))

    def at(event: Event) -> None:
        if isinstance(event, StepEvent) and event.step == 3:
            pool.draining, pool.spares = {"worker-1": "its node drains"}, 1
        elif isinstance(event, StepEvent) and event.step == 6:
            pool.draining = {}

    events, _ = run(cache, tmp_path, config, pool, at)
    assert worst(curve(events), alone) <= 1e-10
    assert replayed(events) == 0
    assert {2, 3} == {e.world_size for e in events if isinstance(e, StepEvent)}


def test_a_layout_that_can_not_hold_the_model_is_refused_with_the_bytes(cache: LatentCache, tmp_path: Path) -> None:
    config = make_config(cache, 2, **QUIET)
    config = config.model_copy(update={"workers": config.workers.model_copy(update={"memory_bytes": 2 << 20})})
    with pytest.raises(ModelError, match=r"replicated on 2 ranks needs 0\.0\d GiB on rank \d .* it has 0\.00 GiB"):
        run(cache, tmp_path, config, LocalPool(config, str(cache.folder)))
