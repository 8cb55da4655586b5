"""The driver: plans every batch, dispatches it, decides whether it counts, and says what happened.

It imports neither torch nor ray: workers are reached through a `Pool`. A step is atomic: all live workers have voted
before it is committed to the ledger, and it is in the ledger before any worker applies it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zellige_ray.actors.asides import Asides
from zellige_ray.actors.batches import Batches
from zellige_ray.actors.commit import CommitRule, decide_again
from zellige_ray.actors.crew import CorruptSamples, Crew
from zellige_ray.actors.dispatch import Dispatch
from zellige_ray.actors.foresight import Foresight
from zellige_ray.actors.journal import Journal
from zellige_ray.actors.membership import Rewound, StateLost
from zellige_ray.actors.memory import Memory, read_hardware, write_members
from zellige_ray.actors.messages import Decision, Epoch, Member, Vote
from zellige_ray.actors.planning import Planned
from zellige_ray.actors.pool import Pool
from zellige_ray.actors.prepared import Start
from zellige_ray.actors.retreat import Retreat
from zellige_ray.actors.saver import Saver
from zellige_ray.config import RunConfig
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.record import Record
from zellige_ray.data.sampler import SamplerState
from zellige_ray.errors import CheckpointError, DataError, PoolError, ZelligeError
from zellige_ray.models.specs import get_spec
from zellige_ray.monitor.events import Event, NoteEvent, PhaseEvent
from zellige_ray.placement import HardwareProfile
from zellige_ray.training import checkpoint_files
from zellige_ray.training.checkpoint_files import Position
from zellige_ray.words import counted

MAX_SKIPPED = 3
SAVE_TIMEOUT_S = 600.0

__all__ = ["Driver", "Start"]


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
        token: str = "",
        memory: Memory | None = None,
    ) -> None:
        """config.workers.count is a number by now. emit: takes every event, in this thread.

        token: names this launch. memory: what an earlier driver of this launch left; None for the first one.
        """
        self._config, self._folder, self._emit, self._token = config, folder, emit, token
        self._train, self._text_dim, self._start, self._memory = train, text_dim, start, memory
        self._stopping = threading.Event()
        self._spec = get_spec(config.model.name)
        self._batches = Batches(train, config, self.tokens)
        self._rule = CommitRule(Decision(start.step))
        self._journal = Journal(folder, train, config, self.tokens, emit)
        self._crew = Crew(
            pool,
            config.workers,
            lambda: self._rule.decided,
            self._journal.noticed,
            self._formed,
            self._stopping.is_set,
            parts=config.state.layout != "replicated",
        )
        self._journal.follow(lambda: (self.step, self._position.pass_, self._crew.epoch))
        self._dispatch = Dispatch(self._crew, self._batches, self._journal, self._rule)
        newest = checkpoint_files.newest(folder) if memory is not None else None
        saved = checkpoint_files.read_position(newest).step if newest is not None else start.step
        self._saver = Saver(folder, config.checkpoint.keep, saved, emit, config.state.layout, config.checkpoint.to)
        self._asides = Asides(config, folder, train, held_out, self.tokens, self._dispatch, self._crew, self._journal)
        self._foresight = Foresight(config, folder, self._spec, text_dim, self._crew, emit)
        self._position = start.sampler
        self._retreat = Retreat(folder)
        self._skipped = 0

    @property
    def step(self) -> int:
        """The last committed step."""
        return self._rule.decided.step

    def tokens(self, sample: SampleMeta) -> int:
        """Visual tokens of a sample."""
        return self._spec.tokens(sample.latent_shape)

    def stop(self) -> None:
        """Ends the run after the step in flight, with a complete checkpoint."""
        self._stopping.set()

    def run(self) -> dict[str, Any]:
        """Trains to the last step; what `summary.json` says. Raises ZelligeError, checkpoints being complete."""
        try:
            memory, self._memory = self._memory, None  # it holds every event so far
            if memory is None:
                self._begin()
            else:
                self._begin_again(memory)
            self._train_to_end()
            stopped = self._stopping.is_set()
            if not stopped:
                self._compare()
            return self._journal.summary(self._crew.replans, stopped)
        finally:
            self._crew.close()
            self._journal.close()

    # The beginning

    def _begin(self) -> None:
        count = self._config.workers.count
        assert isinstance(count, int)
        if self._start.checkpoint is not None:
            text = f"resumed from {Path(self._start.checkpoint).name}"
            self._journal.resumed(self._start.step)
            self._journal.rewound(self._start.step, text)
            self._emit(NoteEvent("info", f"{text}, at step {self._start.step} of {self._config.steps}"))
            self._batches.recall(self._journal.records())
        self._emit(PhaseEvent("workers", 0, count))
        try:
            self._crew.start(count, self._start.checkpoint)
        except StateLost as fault:
            self._go_back(fault.others)
        self._emit(PhaseEvent("workers", self._crew.epoch.size, count))
        self._emit(NoteEvent("info", f"workers: {self._crew.epoch.roll_call()}"))
        self._make_planner(None)

    def _begin_again(self, memory: Memory) -> None:
        """Another driver ran before this one: the ledger says what is decided, the workers say what they hold."""
        self._journal.recall(memory)
        self._batches.recall(self._journal.records())
        adopted = self._crew.adopt(memory.members, self._start.checkpoint)
        last = self._journal.last_commit()
        if last is not None:
            self._position = self._batches.after(last)
        again = decide_again(last.step if last else self._start.step, memory.members, memory.epoch, adopted.standings)
        self._rule.rewind(again.decided)
        self._journal.restarted(memory.silent_s)
        hardware = read_hardware(self._folder)
        standings = [adopted.standings[w] for w in memory.members if w in adopted.standings]
        votes = [s.vote for s in standings if s.vote is not None]
        if hardware is not None and memory.members and len(votes) == len(memory.members):
            self._make_planner(hardware)
            epoch = Epoch(memory.epoch, tuple(s.member for s in standings))
            if again.commit is not None:
                self._commit_again(epoch, votes)
            elif last is not None and last.step == votes[0].step not in memory.steps:
                self._say_again(epoch, votes, last)
        holders, behind = ([adopted.standings[w].member for w in ws] for ws in (again.holders, again.behind))
        if holders:
            self._survives(lambda: self._crew.take_over(holders, behind))
        elif not memory.members:  # it had formed no epoch yet
            self._crew.restart(self._start.checkpoint, behind)
        else:
            self._go_back(behind)
        self._make_planner(hardware)

    def _commit_again(self, epoch: Epoch, votes: list[Vote]) -> None:
        """Every member of the last epoch had voted when its driver died: the step counts."""
        samples, after = self._batches.at(self._position)
        planned = self._dispatch.planner.plan(samples, epoch)
        self._rule.open(epoch.number, epoch.workers)
        for worker, vote in zip(epoch.workers, votes, strict=True):
            self._rule.vote(worker, epoch.number, vote)
        self._commit(epoch, planned, votes, samples, after, votes[0].seconds)

    def _say_again(self, epoch: Epoch, votes: list[Vote], last: Record) -> None:
        """The last step was in the ledger, and its driver died before anybody heard of it."""
        by_id = {s.id: s for s in self._train.samples}
        samples = [by_id[i] for i in last.sample_ids]
        planned = self._dispatch.planner.plan(samples, epoch)
        self._journal.stepped(last.step, last.pass_, epoch, planned, votes, samples, last.seconds)

    def _make_planner(self, known: HardwareProfile | None) -> None:
        self._emit(PhaseEvent("profile", 0, 1))
        while not self._survives(lambda: self._foresight.look(known)):
            pass
        self._dispatch.planner = self._foresight.planner
        self._emit(PhaseEvent("profile", 1, 1))
        self._emit(NoteEvent("info", f"{counted(self._crew.epoch.size, 'rank')}; {self._foresight.describe()}"))

    def _go_back(self, ready: Sequence[Member] = ()) -> None:
        """Nobody holds the state any more: on from the newest complete checkpoint; the ledger says what is replayed."""
        while True:
            place = self._retreat.place(self.step)
            for text in checkpoint_files.damages(self._folder):
                self._emit(NoteEvent("warning", text))
            why = "a part of the state was lost with its copies" if ready else "all workers died"
            text = f"{why}: {counted(self.step - place.step, 'step')} to be replayed from {place.name}"
            self._rewind(place.step, place.sampler, text)
            try:
                self._crew.restart(place.checkpoint, ready)
                return
            except StateLost as fault:
                ready = fault.others

    def _go_back_to_copies(self, step: int) -> None:
        """All workers hold an older step by now, from each other's memory."""
        commit = self._journal.commit_of(step)
        sampler = self._batches.after(commit) if commit is not None else self._start.sampler
        replayed = counted(self.step - step, "step")
        self._rewind(step, sampler, f"workers went back to copies of step {step}: {replayed} to be replayed")

    def _rewind(self, step: int, sampler: SamplerState, text: str) -> None:
        self._rule.rewind(Decision(step))
        self._position = sampler
        self._journal.rewound(step, text)
        self._emit(NoteEvent("warning", text))

    def _survives(self, work: Callable[[], None]) -> bool:
        """Does `work`; False when the state was lost under it, and the run goes on from an older one."""
        try:
            work()
        except Rewound as fault:
            self._go_back_to_copies(fault.step)
        except StateLost as fault:
            self._go_back(fault.others)
        else:
            return True
        return False

    # The steps

    def _train_to_end(self) -> None:
        """Until the last step, or the one in flight when it should stop, is in a complete checkpoint."""
        saved = False
        try:
            while not saved:
                try:
                    if self.step < self._config.steps and not self._stopping.is_set():
                        self._survives(self._one_step)
                    else:
                        saved = self._survives(lambda: self._save(last=True))
                except CorruptSamples:
                    continue  # set aside, with nothing left of their batch
        except PoolError as fault:
            if self._crew.epoch.size and not isinstance(fault, StateLost):
                with contextlib.suppress(CheckpointError):  # it has said why
                    self._save(last=True)  # too few are left to go on, but they hold the state
            raise

    def _one_step(self) -> None:
        if self._foresight.outdated:
            self._make_planner(None)
        pass_ = self._position.pass_
        samples, after = self._batches.at(self._position)
        start = time.perf_counter()

        def plan_ahead(epoch: Epoch) -> None:
            if self.step + 1 < self._config.steps:
                self._dispatch.planner.plan(self._batches.at(after)[0], epoch)

        planned, replies, samples = self._dispatch.run(
            "step", samples, pass_, meanwhile=plan_ahead, judge=self._rule.judge
        )
        votes = [replies[w].value for w in self._crew.epoch.workers]
        self._commit(self._crew.epoch, planned, votes, samples, after, time.perf_counter() - start)
        self._between_steps()

    def _commit(
        self,
        epoch: Epoch,
        planned: Planned,
        votes: Sequence[Vote],
        samples: Sequence[SampleMeta],
        after: SamplerState,
        seconds: float,
    ) -> None:
        pass_ = self._position.pass_

        def log(step: int, vote: Vote) -> None:
            ids = tuple(s.id for s in samples)
            self._journal.commit(step, pass_, ids, vote.plan_hash, epoch, seconds, self._config.workers.wait_timeout_s)

        decided = self._rule.commit(log)
        self._position = after
        self._journal.stepped(decided.step, pass_, epoch, planned, votes, samples, seconds)
        self._foresight.see(epoch, planned, [v.times for v in votes])
        self._check_finite(decided.update, samples)

    def _compare(self) -> None:
        try:
            self._asides.compare()
        except (Rewound, StateLost):
            self._emit(NoteEvent("warning", "the state was lost while policies were compared: there is no comparison"))

    def _check_finite(self, finite: bool, samples: Sequence[SampleMeta]) -> None:
        self._skipped = 0 if finite else self._skipped + 1
        if finite:
            return
        ids = ", ".join(s.id for s in samples)
        text = f"step {self.step}: a gradient was not finite, no weight changed; samples {ids}"
        self._emit(NoteEvent("warning", text))
        if self._skipped >= MAX_SKIPPED:
            raise ZelligeError(
                f"{MAX_SKIPPED} steps in a row had gradients that are not finite, the last one step {self.step}; "
                "lower optimizer.lr, or look at the samples that the warnings name"
            )

    def _between_steps(self) -> None:
        if self.step % self._config.checkpoint.every == 0:
            self._save()
        self._asides.due(self.step)
        self._saver.poll(self._crew)
        if not self._crew.between_steps():
            self._save()

    def _save(self, last: bool = False) -> None:
        """Starts a checkpoint; the last one is waited for. Raises CheckpointError when that can't be written."""
        identity = checkpoint_files.model_identity(self._config)
        position = Position(
            self.step, self._position.to_json(), identity, self._text_dim, self._train.fingerprint, self._config.seed
        )
        if last:
            self._saver.finish(self._crew, SAVE_TIMEOUT_S)
        self._saver.begin(self._crew, self._rule.decided, position)
        if last:
            self._saver.finish(self._crew, SAVE_TIMEOUT_S)
            self._saver.mirror.finish(SAVE_TIMEOUT_S)
            if self._saver.step != self.step:
                raise CheckpointError(self._saver.fault or f"no checkpoint of step {self.step} could be written")

    def _formed(self, epoch: Epoch) -> None:
        try:
            write_members(self._folder, self._token, epoch)
        except OSError as fault:
            raise DataError(f"cannot write to the run folder {self._folder}: {fault.strerror or fault}") from fault
