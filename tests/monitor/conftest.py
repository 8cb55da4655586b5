"""Events of one made-up run, and a run folder that holds them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from zellige_ray.config import dump_config, load_config
from zellige_ray.configs import configs
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.environment import write_environment
from zellige_ray.monitor.events import (
    CheckpointEvent,
    ComparisonEvent,
    Event,
    HeldOutEvent,
    MembershipEvent,
    NoteEvent,
    PhaseEvent,
    PreviewEvent,
    RankTimes,
    RatesEvent,
    StepEvent,
)
from zellige_ray.monitor.history import History
from zellige_ray.monitor.metrics import JsonLines
from zellige_ray.placement import CostModel, Sequence, load_hardware, load_model, make_plan, plan_to_json
from zellige_ray.placement.plan import RankLoad

STEPS = 12
BROKEN = 6  # the step during which a worker dies
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f645400000"
    "000049454e44ae426082"
)


def step_event(number: int, ranks: int = 4, seconds: float = 0.5, tokens: int = 6000, steps: int = STEPS) -> StepEvent:
    planned = tuple(
        RankLoad(r, 0.1 + 0.01 * r, 0.2, 0.03, 0.07 - 0.01 * r, 10**9, tokens // ranks) for r in range(ranks)
    )
    measured = tuple(RankTimes(r, 0.12, 0.2, 0.05, 0.02 * r, tokens // ranks, 400 << 20) for r in range(ranks))
    return StepEvent(
        step=number, pass_=0, epoch=int(number >= BROKEN), world_size=ranks, loss=1.5 * 0.9**number, grad_norm=1.0,
        lr=1e-3, images=5, videos=3, samples=8, tokens=tokens, tokens_left=tokens * (steps - number), seconds=seconds,
        plan_s=0.003, predicted_s=0.42, lower_bound_s=0.4, plan_hash="ab" * 32, planned=planned, measured=measured,
        flops=3e8 * ranks,
    )  # fmt: skip


@pytest.fixture
def events() -> list[Event]:
    out: list[Event] = [PhaseEvent("encode", 0, 4), PhaseEvent("encode", 4, 4), NoteEvent("info", "kernel: sdpa [cpu]")]
    out.append(RatesEvent(2e9, 1e9, 2e9, 2 << 30))
    for number in range(1, STEPS + 1):
        if number == BROKEN:
            out.append(MembershipEvent(number, 1, "left", "w3", "SIGKILL <b>", 0.31, 8))
        out.append(step_event(number, ranks=4 if number < BROKEN else 3))
        if number % 4 == 0:
            out.append(HeldOutEvent(number, 1.4 * 0.9**number))
    out.append(PreviewEvent(STEPS, ("previews/step-000012/coffee.png", "previews/step-000012/clip.mp4")))
    out.append(CheckpointEvent(STEPS, "checkpoints/step-000012", 0.3))
    out.append(NoteEvent("warning", "the disk has 12 MiB left"))
    out.append(ComparisonEvent(5, {"zellige": (0.4, 0.36), "dp": (0.6, 0.5), "cp": (0.7, 0.66)}))
    return out


@pytest.fixture
def folder(tmp_path: Path, events: list[Event]) -> Path:
    """A run folder as a finished run leaves it; its clip is no real one."""
    seconds = iter(range(1_000_000, 2_000_000))
    with JsonLines(tmp_path / run_folder.METRICS, clock=lambda: float(next(seconds))) as sink:
        for event in events:
            sink.see(event)
    (tmp_path / run_folder.CONFIG).write_text(dump_config(load_config(configs["mini"])))
    (tmp_path / run_folder.SUMMARY).write_text(json.dumps({"samples_lost": 0, "samples_doubled": 0, "steps": STEPS}))
    write_environment(tmp_path)
    _keep_plans(tmp_path)
    previews = tmp_path / run_folder.PREVIEWS / "step-000012"
    previews.mkdir(parents=True)
    (previews / "coffee.png").write_bytes(PIXEL)
    (previews / "clip.mp4").write_bytes(b"not a clip")
    return tmp_path


@pytest.fixture
def make_step() -> Callable[..., StepEvent]:
    return step_event


@pytest.fixture
def history(events: list[Event]) -> History:
    out = History()
    for event in events:
        out.see(event)
    return out


def _keep_plans(folder: Path) -> None:
    """Plans of two steps on the four ranks of the first epoch, and what they were made with."""
    hardware = dataclasses.replace(load_hardware("cpu"), nodes=1, ranks_per_node=4, speed=None)
    model = load_model("dit-xl")
    (folder / run_folder.HARDWARE).write_text(yaml.safe_dump(hardware.to_dict()))
    (folder / run_folder.MODEL).write_text(yaml.safe_dump(model.to_dict()))
    (folder / run_folder.PLANS).mkdir()
    for step in (4, 5):
        batch = [Sequence("a long clip", 4000 * step), *(Sequence(f"picture {i}", 900 + 50 * i) for i in range(6))]
        plan = make_plan(batch, hardware.cluster(), CostModel(hardware, model))
        (folder / run_folder.PLANS / f"step-{step:06d}.json").write_text(json.dumps(plan_to_json(plan)))
