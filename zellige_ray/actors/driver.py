"""The driver: plans every batch, dispatches it, decides whether it counts, and says what happened.

It imports neither torch nor ray: workers are reached through a `Pool`. A step is atomic: all live workers have voted
before it is committed to the ledger, and it is in the ledger before any worker applies it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zellige_ray.actors.crew import Crew
from zellige_ray.actors.messages import Decision, Epoch, Order, Reply
from zellige_ray.actors.planning import Planned, Planner, measured_hardware, relative_speeds
from zellige_ray.actors.pool import Pool
from zellige_ray.actors.tally import Tally
from zellige_ray.config import RunConfig
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.ledger import REWIND, Ledger, Record
from zellige_ray.data.sampler import Sampler, SamplerState
from zellige_ray.errors import PoolError, ZelligeError
from zellige_ray.models.specs import get_spec
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import (
    CheckpointEvent,
    ComparisonEvent,
    Event,
    HeldOutEvent,
    MembershipEvent,
    NoteEvent,
    PhaseEvent,
    PreviewEvent,
    StepEvent,
)
from zellige_ray.placement import HardwareProfile, Plan, load_hardware, plan_to_json
from zellige_ray.training import checkpoint_files
from zellige_ray.training.checkpoint_files import Position

FIRST_HELD_OUT = 5  # the held-out loss is first measured after this step: before it, training has only found the scale
MAX_SKIPPED = 3
KEPT_PLANS = 50
RIVALS = ("dp", "cp")
DTYPE_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins: at step 0, or behind a checkpoint."""

    step: int = 0
    sampler: SamplerState = field(default_factory=SamplerState)
    checkpoint: str | None = None


class Driver:
    """One run. `run` blocks until it is done; `stop` may come from another thread."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        pool: Pool,
        train: Index,
        held_out: Index,
        text_dim: int,
        start: Start,
        emit: Callable[[Event], None],
    ) -> None:
        """config.workers.count is a number by now. emit: takes every event, in this thread."""
        self._config, self._folder, self._emit = config, folder, emit
        self._train, self._held_out, self._text_dim, self._start = train, held_out, text_dim, start
        self._spec = get_spec(config.model.name)
        self._sampler = Sampler(train, config.batch, config.seed, self._tokens)
        self._ledger = Ledger(folder / run_folder.LEDGER, train)
        self._crew = Crew(pool, config.workers, Decision(start.step), self._noticed)
        self._position = start.sampler
        self._saved_step = start.step
        self._skipped = 0
        self._stopping = threading.Event()
        self._tally = Tally()

    @property
    def step(self) -> int:
        """The last committed step."""
        return self._crew.decided.step

    def stop(self) -> None:
        """Ends the run after the step in flight, with a complete checkpoint."""
        self._stopping.set()

    def run(self) -> dict[str, Any]:
        """Trains to the last step; what `summary.json` says. Raises ZelligeError, checkpoints being complete."""
        try:
            self._begin()
            self._train_to_end()
            self._save()
            if not self._stopping.is_set():
                self._compare()
            stopped = self._stopping.is_set()
            return self._tally.summary(self._folder, self._train, self._crew.replans, stopped)
        finally:
            self._crew.close()
            self._ledger.close()

    def _begin(self) -> None:
        config, count = self._config, self._config.workers.count
        assert isinstance(count, int)
        if self._start.checkpoint is not None:
            detail = f"resumed from {Path(self._start.checkpoint).name}"
            self._ledger.append(Record(self._start.step, self._position.pass_, event=REWIND, detail=detail))
        self._emit(PhaseEvent("workers", 0, count))
        self._crew.start(count, self._start.checkpoint)
        self._emit(PhaseEvent("workers", self._crew.epoch.size, count))
        self._emit(NoteEvent("info", f"workers: {self._crew.epoch.roll_call()}"))
        self._emit(PhaseEvent("profile", 0, 1))
        hardware, speeds = self._hardware()
        model = self._spec.preset(config.model, DTYPE_BYTES[config.engine.dtype])
        self._planner = Planner(self._spec, model, hardware, speeds, config.placement.policy)
        self._planner.write(self._folder, self._crew.epoch)
        self._emit(PhaseEvent("profile", 1, 1))
        self._emit(NoteEvent("info", f"{self._crew.epoch.size} ranks; {hardware.name} rates: "
            f"{hardware.linear_flops / 1e9:.1f} GFLOP/s linear, {hardware.attention_flops / 1e9:.1f} attention, "
            f"{hardware.intra_node_bytes_per_s / 1e6:.0f} MB/s to a neighbour"))  # fmt: skip

    def _hardware(self) -> tuple[HardwareProfile, dict[str, float]]:
        """Rates and relative speeds: those of a named preset, so that plans can be repeated, else measured now."""
        named = self._config.placement.hardware
        if named is not None:
            return load_hardware(named), {}
        replies = self._crew.all("measure", lambda epoch: {w: (epoch.number,) for w in epoch.workers})
        epoch = self._crew.epoch
        measured = [replies[w].value for w in epoch.workers]
        return measured_hardware(measured, epoch), dict(zip(epoch.workers, relative_speeds(measured), strict=True))

    def _train_to_end(self) -> None:
        try:
            while self.step < self._config.steps and not self._stopping.is_set():
                self._one_step()
                self._between_steps()
        except PoolError:
            if self._crew.epoch.size:
                self._save()  # too few are left to go on, but one holds the state
            raise

    # One step

    def _one_step(self) -> None:
        step, pass_ = self.step + 1, self._position.pass_
        samples, after = self._sampler.batch(self._position)
        start = time.perf_counter()

        def plan_ahead(epoch: Epoch) -> None:
            if step < self._config.steps:
                self._planner.plan(self._sampler.batch(after)[0], epoch)

        planned, replies = self._on_plan("step", samples, pass_, meanwhile=plan_ahead)
        seconds, epoch = time.perf_counter() - start, self._crew.epoch
        vote = replies[epoch.workers[0]].value
        ids = tuple(s.id for s in samples)
        self._ledger.append(Record(step, pass_, ids, planned.plan.hash, epoch.number, epoch.size, seconds))
        self._crew.decided, self._position = Decision(step, vote.finite), after
        self._report(planned, replies, samples, pass_, seconds)
        self._check_finite(vote.finite, ids)

    def _report(
        self, planned: Planned, replies: Mapping[str, Reply], samples: Sequence[SampleMeta], pass_: int, seconds: float
    ) -> None:
        epoch, predicted = self._crew.epoch, planned.plan.predicted
        assert predicted is not None
        votes = [replies[w].value for w in epoch.workers]
        images, tokens = sum(s.media == "image" for s in samples), sum(map(self._tokens, samples))
        event = StepEvent(
            step=self.step, pass_=pass_, epoch=epoch.number, world_size=epoch.size,
            loss=votes[0].loss, grad_norm=votes[0].norm, lr=votes[0].lr,
            images=images, videos=len(samples) - images, samples=len(samples), tokens=tokens,
            tokens_left=self._tally.tokens_left(tokens, self._config.steps - self.step),
            seconds=seconds, plan_s=planned.seconds, predicted_s=predicted.step_s,
            lower_bound_s=predicted.lower_bound_s, plan_hash=planned.plan.hash, planned=predicted.ranks,
            measured=tuple(v.times for v in votes),
        )  # fmt: skip
        self._tell(event)
        self._keep_plan(planned.plan)

    def _keep_plan(self, plan: Plan) -> None:
        folder = self._folder / run_folder.PLANS
        folder.mkdir(exist_ok=True)
        (folder / f"step-{self.step:06d}.json").write_text(json.dumps(plan_to_json(plan)), encoding="utf-8")
        (folder / f"step-{self.step - KEPT_PLANS:06d}.json").unlink(missing_ok=True)

    def _check_finite(self, finite: bool, ids: tuple[str, ...]) -> None:
        self._skipped = 0 if finite else self._skipped + 1
        if finite:
            return
        text = f"step {self.step}: a gradient was not finite, no weight changed; samples {', '.join(ids)}"
        self._emit(NoteEvent("warning", text))
        if self._skipped >= MAX_SKIPPED:
            raise ZelligeError(
                f"{MAX_SKIPPED} steps in a row had gradients that are not finite, the last one step {self.step}; "
                "lower optimizer.lr, or look at the samples that the warnings name"
            )

    # Between steps

    def _between_steps(self) -> None:
        step, config = self.step, self._config
        last = step == config.steps
        due = step == min(FIRST_HELD_OUT, config.steps) or step % config.evaluate_every == 0
        if self._held_out.samples and (due or last):
            _, replies = self._on_plan("held_out", self._held_out.samples)
            self._tell(HeldOutEvent(step, next(iter(replies.values())).value))
        if config.preview.every is not None and (step % config.preview.every == 0 or last):
            self._preview()
        if step % config.checkpoint.every == 0:
            self._save()
        self._crew.take_in()

    def _preview(self) -> None:
        shown = preview_samples(self._held_out.samples or self._train.samples, self._config.preview.count)
        _, replies = self._on_plan("denoise", shown, steps=self._config.preview.steps)
        parts = [part for reply in replies.values() for part in reply.value]
        folder, files = f"{run_folder.PREVIEWS}/step-{self.step:06d}", []
        for rank, sample in enumerate(shown):
            args = (str(self._folder / folder), sample, [p for p in parts if p.sample == sample.id])
            files.append(f"{folder}/{self._crew.one(rank, 'render', args)}")
        self._emit(PreviewEvent(self.step, tuple(files)))

    def _save(self) -> None:
        if self.step == self._saved_step:
            return
        start, step = time.perf_counter(), self.step
        partial = checkpoint_files.partial_folder(self._folder, step)
        self._crew.one(0, "save", (str(partial), self._crew.decided))
        identity = checkpoint_files.model_identity(self._config)
        position = Position(
            step, self._position.to_json(), identity, self._text_dim, self._train.fingerprint, self._config.seed
        )
        path = checkpoint_files.seal(partial, position)
        checkpoint_files.prune(self._folder, self._config.checkpoint.keep)
        self._saved_step = step
        self._emit(CheckpointEvent(step, str(path.relative_to(self._folder)), time.perf_counter() - start))

    def _compare(self) -> None:
        """Times policies against each other on batches that count for nothing, interleaved."""
        config = self._config
        policies = list(dict.fromkeys([config.placement.policy, *RIVALS]))
        aside = Sampler(self._train, config.batch, config.seed + 1, self._tokens).batches()
        seconds: dict[str, list[tuple[float, float]]] = {p: [] for p in policies}
        for turn in range(config.compare_batches):
            samples, _ = next(aside)
            for policy in policies[turn % len(policies) :] + policies[: turn % len(policies)]:
                planned, replies = self._on_plan("rehearse", samples, policy=policy)
                assert planned.plan.predicted is not None
                measured = max(reply.value.seconds for reply in replies.values())
                seconds[policy].append((measured, planned.plan.predicted.step_s))
        if config.compare_batches:
            means = {p: (_mean(m for m, _ in s), _mean(q for _, q in s)) for p, s in seconds.items()}
            self._tell(ComparisonEvent(config.compare_batches, means))

    # Calls and events

    def _on_plan(
        self,
        method: str,
        samples: Sequence[SampleMeta],
        pass_: int = 0,
        policy: str | None = None,
        steps: int = 0,
        meanwhile: Callable[[Epoch], None] | None = None,
    ) -> tuple[Planned, Mapping[str, Reply]]:
        """Runs `method` on a plan of `samples`, planned anew for whoever is alive, until all have answered well."""

        def orders(epoch: Epoch) -> dict[str, tuple[Order]]:
            plan = self._planner.plan(samples, epoch, policy).plan
            order = Order(epoch.number, self._crew.decided, plan, tuple(samples), pass_, steps)
            return {w: (order,) for w in epoch.workers}

        replies = self._crew.all(method, orders, meanwhile, len(samples))
        return self._planner.plan(samples, self._crew.epoch, policy), replies

    def _tell(self, event: StepEvent | HeldOutEvent | ComparisonEvent) -> None:
        self._tally.see(event)
        self._emit(event)

    def _noticed(self, event: MembershipEvent | NoteEvent) -> None:
        if isinstance(event, MembershipEvent):
            detail = f"{event.worker}: {event.reason}; {event.replayed} samples replayed"
            size, number = self._crew.epoch.size, self._crew.epoch.number
            self._ledger.append(
                Record(self.step, self._position.pass_, (), "", number, size, event.lost_s, event.change, detail)
            )
        self._emit(event)

    def _tokens(self, sample: SampleMeta) -> int:
        return self._spec.tokens(sample.latent_shape)


def preview_samples(samples: Sequence[SampleMeta], count: int) -> tuple[SampleMeta, ...]:
    """Samples to show: images and videos in turn, the small ones first, so that a preview stays cheap."""
    by_size = sorted(samples, key=lambda s: (s.tokens(), s.id))
    images = [s for s in by_size if s.media == "image"]
    videos = [s for s in by_size if s.media == "video"]
    turns = [s for pair in zip(images, videos, strict=False) for s in pair]
    return tuple((turns + [s for s in by_size if s not in turns])[:count])


def _mean(values: Any) -> float:
    listed = list(values)
    return float(sum(listed) / len(listed))
