"""Simulation: events and files of a run that never happened, for tests and benchmarks of whatever watches a run.

Plans are real, made by the planner for the named ranks; what is measured is the plan's prediction with seeded noise and
one rank that is slower than its peers. Nothing here trains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml

from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import (
    CheckpointEvent,
    Event,
    HeldOutEvent,
    MembershipEvent,
    NoteEvent,
    PhaseEvent,
    RankTimes,
    RatesEvent,
    StepEvent,
)
from zellige_ray.monitor.figures import plan_flops
from zellige_ray.placement import (
    Cluster,
    CostModel,
    HardwareProfile,
    ModelPreset,
    Plan,
    Sequence,
    load_model,
    make_plan,
    plan_to_json,
)

RANKS_PER_NODE = 8
SLOW = 1.35  # seconds per planned second of the slow rank
PLANS = 3  # different batches, used in turn


class Simulation:
    """A made-up run of `ranks` ranks; the last worker is lost at step `lost_at`, another one comes at `back_at`."""

    def __init__(
        self,
        folder: Path,
        ranks: int,
        steps: int = 200,
        seed: int = 0,
        lost_at: int | None = None,
        back_at: int | None = None,
    ) -> None:
        self.folder, self.ranks, self.steps = folder, ranks, steps
        self._lost_at, self._back_at = lost_at, back_at
        self._random = np.random.default_rng(seed)
        self.model: ModelPreset = load_model("wan-1.3b")
        per_node = min(ranks, RANKS_PER_NODE)
        self.hardware = HardwareProfile(
            "simulation", ranks // per_node, per_node, 80 << 30, 3.2e14, 2.4e14, 2e11, 2.5e10, 1e-5
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / run_folder.HARDWARE).write_text(yaml.safe_dump(self.hardware.to_dict()), encoding="utf-8")
        (folder / run_folder.MODEL).write_text(yaml.safe_dump(self.model.to_dict()), encoding="utf-8")
        (folder / run_folder.PLANS).mkdir(exist_ok=True)
        self._plans: dict[tuple[int, int], Plan] = {}

    def events(self) -> Iterator[Event]:
        """The whole run, plans and members written to the folder as a driver would."""
        yield PhaseEvent("workers", self.ranks, self.ranks)
        yield RatesEvent(self.hardware.linear_flops, self.hardware.attention_flops, 9.9e14, 80 << 30)
        yield NoteEvent("info", f"simulation: {self.ranks} ranks that do not exist")
        epoch, size = 0, self.ranks
        self._members(epoch, size)
        for number in range(1, self.steps + 1):
            if number == self._lost_at:
                epoch, size = epoch + 1, size - 1
                self._members(epoch, size)
                yield MembershipEvent(number - 1, epoch, "left", f"w{size}", "its process was killed", 0.31, 24)
            if number == self._back_at:
                epoch, size = epoch + 1, size + 1
                self._members(epoch, size)
                yield MembershipEvent(number - 1, epoch, "joined", f"w{size}", "a node came back", 0.02, 0)
            event = self.step(number, epoch, size)
            yield event
            if number % 10 == 0:
                yield HeldOutEvent(number, 0.04 + 1.15 * math.exp(-number / 60) + 0.12)
            if number % 50 == 0:
                yield CheckpointEvent(number, str(self.folder / run_folder.CHECKPOINTS / f"step-{number:06d}"), 1.4)

    def step(self, number: int, epoch: int, size: int) -> StepEvent:
        """One step, its plan written to the folder."""
        plan = self._plan(number % PLANS, size)
        text = json.dumps(plan_to_json(plan))
        (self.folder / run_folder.PLANS / f"step-{number:06d}.json").write_text(text, encoding="utf-8")
        (self.folder / run_folder.PLANS / f"step-{number - 50:06d}.json").unlink(missing_ok=True)
        predicted = plan.predicted
        assert predicted is not None
        noise = self._random.normal(1.0, 0.02, (size, 3)).clip(0.9, 1.1)
        noise[size // 3, :2] *= SLOW
        busy = [
            (p.linear_s * a, p.attention_s * b, p.exchange_s * c)
            for p, (a, b, c) in zip(predicted.ranks, noise.tolist(), strict=True)
        ]
        seconds = 1.01 * max(map(sum, busy))
        measured = tuple(
            RankTimes(p.rank, *x, seconds - sum(x), p.tokens, int(p.peak_bytes * 0.93) + (6 << 30))
            for p, x in zip(predicted.ranks, busy, strict=True)
        )
        tokens = sum(int(r.tokens_S.sum()) for r in plan.rounds)
        samples = plan.num_sequences
        loss = 0.05 + 1.2 * math.exp(-number / 60) + 0.12 + float(self._random.normal(0, 0.02))
        return StepEvent(
            step=number, pass_=number // 80, epoch=epoch, world_size=size, loss=loss, grad_norm=1.0, lr=1e-4,
            images=samples * 2 // 3, videos=samples - samples * 2 // 3, samples=samples, tokens=tokens,
            tokens_left=tokens * (self.steps - number), seconds=seconds, plan_s=0.004,
            predicted_s=predicted.step_s, lower_bound_s=predicted.lower_bound_s, plan_hash=plan.hash,
            planned=predicted.ranks, measured=measured, flops=plan_flops(plan, self.model),
        )  # fmt: skip

    def _plan(self, which: int, size: int) -> Plan:
        if (which, size) not in self._plans:
            random = np.random.default_rng(which)
            lengths = random.choice([256, 1024, 1560, 3600, 5292, 20736, 32760, 75600], size=5 * self.ranks,
                                    p=[0.3, 0.15, 0.15, 0.1, 0.15, 0.08, 0.05, 0.02])  # fmt: skip
            batch = [Sequence(f"{'clip' if n > 5000 else 'still'}-{k}", int(n), 120) for k, n in enumerate(lengths)]
            even = self.hardware.cluster()
            cluster = Cluster(even.node_of_rank[:size], even.memory_bytes[:size], (1.0,) * size)
            self._plans[which, size] = make_plan(batch, cluster, CostModel(self.hardware, self.model))
        return self._plans[which, size]

    def _members(self, epoch: int, size: int) -> None:
        rows = [
            {"worker": f"w{r}", "node": f"node-{r // RANKS_PER_NODE}", "pid": 1000 + r, "device": "cuda"}
            for r in range(size)
        ]
        value = {"launch": "simulation", "driver_pid": 1, "epoch": epoch, "members": rows}
        (self.folder / run_folder.MEMBERS).write_text(json.dumps(value), encoding="utf-8")
