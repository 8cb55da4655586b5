"""The driver's logic on a fake pool: what is committed, replanned, skipped, saved, and when it gives up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.actors.fake_pool import FakePool, Fault
from zellige_ray.actors.asides import preview_samples
from zellige_ray.actors.driver import Driver
from zellige_ray.actors.prepared import Start
from zellige_ray.config import RunConfig, parse_config
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.ledger import Ledger, read, verify
from zellige_ray.data.sampler import SamplerState
from zellige_ray.errors import PoolError, ZelligeError
from zellige_ray.monitor.events import ComparisonEvent, Event, MembershipEvent, NoteEvent, StepEvent
from zellige_ray.training.checkpoint_files import newest, read_position

pytestmark = pytest.mark.usefixtures("own_profiles")


def sample(i: int) -> SampleMeta:
    if i % 3:
        return SampleMeta(f"image-{i:02d}", "image", (16, 1, 8 + 2 * (i % 4), 16), 4)
    return SampleMeta(f"clip-{i:02d}", "video", (16, 3 + i % 5, 16, 24), 7)


TRAIN = Index.of(sample(i) for i in range(17))
HELD = Index.of(sample(i) for i in range(30, 34))


def make_config(**settings: Any) -> RunConfig:
    return parse_config(
        {
            "steps": 9,
            "evaluate_every": 4,
            "compare_batches": 2,
            "data": {"source": "mini"},
            "batch": {"samples": 5},
            "model": {"name": "dit"},
            "workers": {"count": 3},
            "checkpoint": {"every": 4},
            "preview": {"every": 6},
            **settings,
        }
    )


def run(tmp_path: Path, pool: Any, start: Start | None = None, **settings: Any) -> tuple[dict[str, Any], list[Event]]:
    events: list[Event] = []
    config = make_config(**settings)
    summary = Driver(config, tmp_path, pool, TRAIN, HELD, 64, start or Start(), events.append).run()
    return summary, events


def of(kind: type, events: list[Event]) -> list[Any]:
    return [e for e in events if isinstance(e, kind)]


def test_an_undisturbed_run_commits_each_step_once_and_each_sample_once_a_pass(tmp_path: Path) -> None:
    pool = FakePool()
    summary, events = run(tmp_path, pool)
    assert [e.step for e in of(StepEvent, events)] == list(range(1, 10))
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"], summary["replans"]) == (9, 0, 0, 0)
    assert (summary["passes"], summary["epochs"], summary["world_sizes"]) == (2, 1, [3])
    assert summary["images"] + summary["videos"] == summary["samples"]
    assert verify(tmp_path / "ledger.jsonl", TRAIN.ids).ok
    assert all(w.history == [(s, True) for s in range(1, 10)] for w in pool.workers.values())
    assert pool.closed


def test_the_comparison_runs_every_policy_on_every_batch_and_commits_nothing(tmp_path: Path) -> None:
    summary, events = run(tmp_path, FakePool())
    (comparison,) = of(ComparisonEvent, events)
    assert list(comparison.policies) == ["zellige", "dp", "cp"]
    assert summary["speedup_over_dp"] == summary["speedup_over_cp"] == 1.0
    assert summary["speedup_over_dp_predicted"] >= 1.0
    assert summary["steps"] == 9


def test_a_death_before_the_vote_drops_the_step_and_replans_it_on_the_survivors(tmp_path: Path) -> None:
    pool = FakePool([Fault("step", 3, die=("worker-1",))])
    summary, events = run(tmp_path, pool)
    (left,) = of(MembershipEvent, events)
    assert (left.step, left.change, left.worker, left.reason, left.replayed) == (
        3,
        "left",
        "worker-1",
        "the actor died",
        5,
    )
    assert (summary["samples_lost"], summary["samples_doubled"], summary["replans"]) == (0, 0, 1)
    assert [e.world_size for e in of(StepEvent, events)] == [3, 3, 2, 2, 2, 2, 2, 2, 2]
    assert pool.dead["worker-1"].history == [(1, True)]
    assert pool.cancelled == [(("worker-0", "worker-2"), 1)]
    third = [o for o in pool.orders if o.decided.step == 2 and o.epoch == 1]
    assert {s.id for s in third[0].samples} == set(of_step(tmp_path, 3))


def of_step(folder: Path, step: int) -> tuple[str, ...]:
    return next(r.sample_ids for r in read(folder / "ledger.jsonl") if r.step == step and r.event is None)


def test_a_replacement_is_taken_in_at_the_next_boundary_with_the_state_of_a_peer(tmp_path: Path) -> None:
    pool = FakePool([Fault("step", 3, die=("worker-1",))], spares=1)
    summary, events = run(tmp_path, pool)
    assert [e.change for e in of(MembershipEvent, events)] == ["left", "joined"]
    assert [e.world_size for e in of(StepEvent, events)] == [3, 3, 2, 3, 3, 3, 3, 3, 3]
    assert pool.workers["worker-3"].history == [(s, True) for s in range(4, 10)]
    assert summary["samples_lost"] == summary["samples_doubled"] == 0


def test_two_deaths_at_once_and_one_while_the_next_epoch_forms(tmp_path: Path) -> None:
    pool = FakePool([Fault("step", 2, die=("worker-0", "worker-3")), Fault("join", 2, die=("worker-2",))])
    summary, events = run(tmp_path, pool, workers={"count": 5})
    assert [e.world_size for e in of(StepEvent, events)] == [5] + [2] * 8
    assert sorted(e.worker for e in of(MembershipEvent, events)) == ["worker-0", "worker-2", "worker-3"]
    assert summary["samples_lost"] == summary["samples_doubled"] == 0


@pytest.mark.parametrize("method", ["probe", "measure", "held_out", "denoise", "render", "save", "rehearse"])
def test_a_death_in_any_other_work_is_survived_and_the_work_done_again(tmp_path: Path, method: str) -> None:
    summary, events = run(tmp_path, FakePool([Fault(method, 1, die=("worker-0",))]))
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (9, 0, 0)
    assert [e.worker for e in of(MembershipEvent, events)] == ["worker-0"]


def test_with_too_few_workers_left_the_run_ends_by_name_with_a_complete_checkpoint(tmp_path: Path) -> None:
    pool = FakePool([Fault("step", 6, die=("worker-1", "worker-2"))])
    with pytest.raises(PoolError, match=r"1 live worker left, 2 needed \(workers.min\)"):
        run(tmp_path, pool, workers={"count": 3, "min": 2, "wait_timeout_s": 0.3})
    checkpoint = newest(tmp_path)
    assert checkpoint is not None
    assert read_position(checkpoint).step == 5
    assert (checkpoint / "state").read_text(encoding="utf-8") == "5"


def test_when_all_workers_die_the_run_goes_on_from_the_newest_checkpoint_and_says_what_is_replayed(
    tmp_path: Path,
) -> None:
    pool = FakePool([Fault("step", 6, die=("worker-0", "worker-1", "worker-2"))], spares=3)
    summary, events = run(tmp_path, pool)
    assert any(e.text == "all workers died: 1 step to be replayed from step-00000004" for e in of(NoteEvent, events))
    assert [e.step for e in of(StepEvent, events)] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    report = verify(tmp_path / "ledger.jsonl", TRAIN.ids)
    assert report.ok
    assert (summary["steps"], report.steps_replayed) == (9, 1)


def test_workers_that_all_die_each_time_after_the_same_step_are_an_error(tmp_path: Path) -> None:
    faults = [Fault("step", n, die=tuple(f"worker-{i}" for i in range(40))) for n in range(6, 16)]
    with pytest.raises(PoolError, match="all workers died 6 times and none came past step 5"):
        run(tmp_path, FakePool(faults, spares=30))
    assert newest(tmp_path) == tmp_path / "checkpoints" / "step-00000004"


def test_when_all_workers_die_before_a_checkpoint_the_run_begins_again(tmp_path: Path) -> None:
    pool = FakePool([Fault("step", 3, die=("worker-0", "worker-1", "worker-2"))], spares=3)
    summary, events = run(tmp_path, pool)
    assert [e.step for e in of(StepEvent, events)] == [1, 2, *range(1, 10)]
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (9, 0, 0)


def test_a_worker_that_dies_while_it_is_set_up_is_named_and_another_takes_its_place(tmp_path: Path) -> None:
    pool = FakePool()
    pool.early_deaths = ["the actor died"]
    summary, events = run(tmp_path, pool)
    text = "worker-0 died while it was set up: the actor died; another is asked for"
    assert [e.text for e in of(NoteEvent, events) if "set up" in e.text] == [text]
    assert (summary["steps"], summary["world_sizes"], set(pool.workers)) == (9, [3], {f"worker-{i}" for i in (1, 2, 3)})


def test_workers_that_die_while_they_are_set_up_again_and_again_end_the_run(tmp_path: Path) -> None:
    pool = FakePool()
    pool.early_deaths = ["the actor died"] * 9
    with pytest.raises(PoolError, match="worker-4 died while it was set up: the actor died; it is the 5th that did"):
        run(tmp_path, pool)
    assert pool.closed


@pytest.mark.parametrize("method", ["join", "measure"])
def test_when_all_workers_die_before_the_first_step_the_run_begins_from_the_seed(tmp_path: Path, method: str) -> None:
    pool = FakePool([Fault(method, 1, die=("worker-0", "worker-1", "worker-2"))], spares=3)
    summary, events = run(tmp_path, pool)
    assert any(
        e.text.startswith("all workers died: 0 steps to be replayed from the beginning") for e in of(NoteEvent, events)
    )
    assert [e.step for e in of(StepEvent, events)] == list(range(1, 10))
    assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (9, 0, 0)


def test_one_of_the_workers_dies_while_rates_are_measured(tmp_path: Path) -> None:
    summary, events = run(tmp_path, FakePool([Fault("measure", 1, die=("worker-1",))]))
    assert (summary["steps"], summary["world_sizes"], len(of(MembershipEvent, events))) == (9, [2], 1)


def test_when_all_workers_die_while_the_last_checkpoint_is_made_the_last_steps_are_run_again(tmp_path: Path) -> None:
    pool = FakePool([Fault("save", 3, die=("worker-0", "worker-1", "worker-2"))], spares=3)
    summary, events = run(tmp_path, pool)
    assert any(e.text == "all workers died: 1 step to be replayed from step-00000008" for e in of(NoteEvent, events))
    checkpoint = newest(tmp_path)
    assert checkpoint is not None
    assert (summary["steps"], read_position(checkpoint).step, summary["samples_doubled"]) == (9, 9, 0)


def test_when_all_workers_die_while_policies_are_compared_the_run_is_done_all_the_same(tmp_path: Path) -> None:
    pool = FakePool([Fault("rehearse", 2, die=("worker-0", "worker-1", "worker-2"))])
    summary, events = run(tmp_path, pool)
    assert any("there is no comparison" in e.text for e in of(NoteEvent, events))
    assert summary["steps"] == 9
    assert "speedup_over_dp" not in summary


def test_a_break_without_a_death_is_run_again_and_said(tmp_path: Path) -> None:
    summary, events = run(tmp_path, FakePool([Fault("step", 4, broken=("worker-2",))]))
    assert any("step was broken and is run again" in e.text for e in of(NoteEvent, events))
    assert (summary["samples_lost"], summary["samples_doubled"], summary["replans"]) == (0, 0, 1)


def test_breaks_without_end_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="step failed 5 times with the same workers"):
        run(tmp_path, FakePool([Fault("step", n, broken=("worker-2",)) for n in range(4, 12)]))


def test_a_step_that_is_not_finite_counts_leaves_weights_alone_and_names_its_samples(tmp_path: Path) -> None:
    pool = FakePool(nonfinite=[4])
    summary, events = run(tmp_path, pool)
    (note,) = [e for e in of(NoteEvent, events) if "not finite" in e.text]
    assert all(name in note.text for name in of_step(tmp_path, 4))
    assert pool.workers["worker-0"].history[3] == (4, False)
    assert summary["samples_lost"] == 0


def test_three_steps_in_a_row_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(ZelligeError, match="3 steps in a row had gradients that are not finite, the last one step 6"):
        run(tmp_path, FakePool(nonfinite=[4, 5, 6]))


def test_a_run_asked_to_stop_ends_with_a_complete_checkpoint_of_the_last_step(tmp_path: Path) -> None:
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepEvent) and event.step == 3:
            driver.stop()

    driver = Driver(make_config(), tmp_path, FakePool(), TRAIN, HELD, 64, Start(), emit)
    summary = driver.run()
    checkpoint = newest(tmp_path)
    assert checkpoint is not None
    assert (summary["stopped"], summary["steps"], read_position(checkpoint).step) == (True, 3, 3)
    assert not of(ComparisonEvent, events)


def test_resumed_in_the_middle_of_a_pass_every_sample_is_used_once_and_replays_are_marked(tmp_path: Path) -> None:
    run(tmp_path, FakePool(), steps=6)  # checkpoints at 4 and 6
    checkpoint = tmp_path / "checkpoints" / "step-00000004"
    position = read_position(checkpoint)
    pool = FakePool()
    pool_start = pool.start
    pool.start = lambda *a: [_at(pool, m, 4) for m in pool_start(*a)]
    start = Start(4, SamplerState.from_json(position.sampler), str(checkpoint))
    summary, _ = run(tmp_path, pool, start, workers={"count": 2})
    report = verify(tmp_path / "ledger.jsonl", TRAIN.ids)
    assert report.ok
    assert (report.steps, report.steps_replayed, report.world_sizes) == (9, 2, (2, 3))
    assert summary["samples_lost"] == summary["samples_doubled"] == 0


def _at(pool: Any, member: Any, step: int) -> Any:
    pool.workers[member.worker].step = step
    return member


def test_previews_alternate_images_and_clips_and_prefer_small_ones() -> None:
    shown = preview_samples(TRAIN.samples, 3)
    assert [s.media for s in shown] == ["image", "video", "image"]
    assert shown[0].tokens() == min(s.tokens() for s in TRAIN.samples)


def test_the_driver_loads_neither_torch_nor_ray_nor_diffusers() -> None:
    wanted = "('torch', 'ray', 'diffusers', 'numba')"
    code = f"import sys, zellige_ray.actors.driver; print([m for m in {wanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_ledger_of_another_data_set_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.jsonl", HELD).close()
    with pytest.raises(ZelligeError, match="fingerprint"):
        Driver(make_config(), tmp_path, FakePool(), TRAIN, HELD, 64, Start(), lambda e: None)
