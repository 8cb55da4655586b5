"""Memory that does not suffice: the same batch is planned again with less, or the run ends by name, nothing lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tests.actors.fake_pool import FakePool
from tests.actors.local_pool import LocalPool
from tests.actors.test_driver import TRAIN, make_config, of, run
from tests.actors.tiny_data import write_cache
from zellige_ray.actors.driver import Driver
from zellige_ray.actors.identity import memory_bytes, room_bytes
from zellige_ray.actors.memory_guard import MemoryGuard
from zellige_ray.actors.messages import Epoch, Member, Order
from zellige_ray.actors.prepared import Start
from zellige_ray.attention.kernels.sdpa import SdpaKernel
from zellige_ray.config import parse_config
from zellige_ray.data.ledger import read, verify
from zellige_ray.errors import OutOfMemory
from zellige_ray.monitor.events import Event, NoteEvent, RankTimes, StepEvent
from zellige_ray.training.checkpoint_files import newest, read_position
from zellige_ray.training.out_of_memory import out_of_memory

NO_ROOM = (
    "[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
)


def tokens_on(order: Order, rank: int) -> int:
    return max(sum(s.stop - s.start for s in r.shards() if s.rank == rank) for r in order.plan.rounds)


def member(worker: str, memory: int = 1000) -> Member:
    return Member(worker, "node", 1, "cpu", memory, 0, "1", "model")


def test_a_batch_that_starves_a_worker_is_planned_again_with_less_and_commits_with_the_same_samples(
    tmp_path: Path,
) -> None:
    calm, pool = FakePool(), FakePool()
    _, plain = run(tmp_path / "calm", calm)
    most = max(tokens_on(o, 1) for o in calm.orders)

    def starve(worker: str, order: Order) -> str | None:
        return NO_ROOM if worker == "worker-1" and tokens_on(order, 1) > 0.8 * most else None

    pool.starve = starve
    summary, events = run(tmp_path / "tight", pool)
    assert (summary["samples_lost"], summary["samples_doubled"]) == (0, 0)
    assert summary["replans"] > 0
    assert summary["world_sizes"] == [3]
    ids = [r.sample_ids for r in read(tmp_path / "tight" / "ledger.jsonl") if r.event is None]
    assert ids == [r.sample_ids for r in read(tmp_path / "calm" / "ledger.jsonl") if r.event is None]
    assert len(of(StepEvent, events)) == len(of(StepEvent, plain)) == 9
    notes = [e.text for e in of(NoteEvent, events) if "ran out of memory" in e.text]
    assert notes and all("worker-1" in n and "for sequence" in n and "DefaultCPUAllocator" in n for n in notes)
    told = [r for r in read(tmp_path / "tight" / "ledger.jsonl") if r.event == "memory"]
    assert [r.detail for r in told] == notes
    assert verify(tmp_path / "tight" / "ledger.jsonl", TRAIN.ids).ok


def test_a_batch_that_no_plan_makes_small_enough_ends_the_run_by_name_with_a_complete_checkpoint(
    tmp_path: Path,
) -> None:
    pool = FakePool()
    pool.starve = lambda worker, order: NO_ROOM if order.decided.step == 5 else None
    with pytest.raises(OutOfMemory, match="for sequence") as fault:
        run(tmp_path, pool)
    assert fault.value.exit_code == 3
    checkpoint = newest(tmp_path)
    assert checkpoint is not None
    assert read_position(checkpoint).step == 5
    assert verify(tmp_path / "ledger.jsonl", TRAIN.ids).samples_doubled == 0


def test_a_measured_overshoot_raises_the_margin_and_is_said(tmp_path: Path) -> None:
    pool = FakePool()
    pool.peak_bytes = (8 << 30) + (1 << 30)
    _, events = run(tmp_path, pool)
    notes = [e.text for e in of(NoteEvent, events) if "placement.memory_margin" in e.text]
    assert "9216 MiB of 8192" in notes[0]
    assert len(notes) < 12  # no more than it takes to reach the largest margin


def test_limits_leave_the_margin_free_and_a_starved_worker_gets_less() -> None:
    told: list[NoteEvent] = []
    guard, epoch = MemoryGuard(0.1, told.append), Epoch(0, (member("a"), member("b", 2000)))
    assert guard.limits(epoch) == (900, 1800)
    guard.see(epoch, [RankTimes(0, 0, 0, 0, 0, 1, 1, 950), RankTimes(1, 0, 0, 0, 0, 1, 1, 0)])
    assert not told
    guard.see(epoch, [RankTimes(0, 0, 0, 0, 0, 1, 1, 1100), RankTimes(1, 0, 0, 0, 0, 1, 1, 0)])
    assert len(told) == 1
    assert guard.limits(epoch)[0] == pytest.approx(790, abs=2)


def test_what_a_worker_may_fill_is_set_by_the_device_and_by_the_user() -> None:
    device, config = torch.device("cpu"), make_config(workers={"count": 2, "memory_bytes": 1 << 20})
    assert room_bytes(device, config) == 1 << 20
    assert 0 < room_bytes(device, make_config(workers={"count": 2})) < memory_bytes(device) // 2


def test_allocators_are_told_from_other_faults() -> None:
    assert "DefaultCPUAllocator" in (out_of_memory(RuntimeError(NO_ROOM)) or "")
    assert out_of_memory(MemoryError("Unable to allocate 8 GiB")) == "Unable to allocate 8 GiB"
    assert out_of_memory(MemoryError()) == "MemoryError"
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")) is not None
    assert out_of_memory(RuntimeError("shapes differ")) is None


def test_an_allocator_that_fails_inside_a_kernel_costs_a_plan_and_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real workers as threads: one is out of memory in the middle of its third step, twice."""
    cache = write_cache(tmp_path / "cache")
    index, held_out = cache.index().split(2, 0)
    config = parse_config(
        {
            "steps": 4, "evaluate_every": 50, "compare_batches": 0, "data": {"source": "none"},
            "batch": {"samples": 4}, "model": {"name": "dit", "layers": 1, "heads": 2, "head_dim": 12},
            "engine": {"dtype": "float64"}, "workers": {"count": 2}, "placement": {"hardware": "cpu"},
            "checkpoint": {"every": 50}, "preview": {"every": None},
        }
    )  # fmt: skip
    real, calls, losses = SdpaKernel.forward, [0], {}

    def scarce(self, *args):
        if threading.current_thread().name.startswith("worker-1"):
            calls[0] += 1
            if calls[0] in (7, 10):
                raise RuntimeError(NO_ROOM)
        return real(self, *args)

    for name in ("calm", "scarce"):
        if name == "scarce":
            monkeypatch.setattr(SdpaKernel, "forward", scarce)
        events: list[Event] = []
        pool = LocalPool(config, str(cache.folder))
        summary = Driver(config, tmp_path / name, pool, index, held_out, cache.text_dim, Start(), events.append).run()
        assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (4, 0, 0)
        losses[name] = [e.loss for e in of(StepEvent, events)]
    assert calls[0] > 10
    assert summary["replans"] == 2
    assert losses["scarce"] == pytest.approx(losses["calm"], rel=1e-10)


SCARCE = """
import resource, sys
import torch
from tests.actors.tiny_data import write_cache
from pathlib import Path
from zellige_ray.actors.messages import Decision, Invitation, Order, Starved
from zellige_ray.actors.worker import Worker
from zellige_ray.attention.tilings import whole_round
from zellige_ray.config import parse_config
from zellige_ray.placement.plan import Plan
import dataclasses

cache = write_cache(Path(sys.argv[1]))
torch.set_num_threads(1)
config = parse_config({"data": {"source": "none"}, "batch": {"samples": 4}, "workers": {"count": 1},
                       "model": {"name": "dit", "layers": 2, "heads": 4, "head_dim": 64}})
worker = Worker("w", "node", config, str(cache.folder), lambda store: store)
worker.setup(None)
assert worker.join(Invitation(0, 0, (0,), 1, None, Decision(0))).status == "ok"
samples = sorted(cache.index().samples, key=lambda s: worker._spec.tokens(s.latent_shape))

def step(samples):
    lengths = [worker._spec.tokens(s.latent_shape) for s in samples]
    round_ = dataclasses.replace(whole_round(lengths, [0] * len(lengths), 4), ids=tuple(s.id for s in samples))
    return worker.step(Order(0, Decision(0), Plan(1, (round_,), "dp"), tuple(samples)))

assert step(samples[:1]).status == "ok"
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages, resource.RLIM_INFINITY))
starved = step(samples)
assert starved.status == "broken" and isinstance(starved.value, Starved), starved
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert step(samples[:1]).status == "ok"
print("starved:", starved.value.said)
"""


def test_a_worker_whose_process_may_grow_no_more_says_so_and_goes_on(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", SCARCE, str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "starved:" in done.stdout
