"""The journal: what a run says about itself, to the ledger, to whoever watches, and in the summary."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zellige_ray.actors.memory import Memory
from zellige_ray.actors.messages import Epoch, Vote
from zellige_ray.actors.planning import Planned
from zellige_ray.actors.tally import Tally
from zellige_ray.config import RunConfig
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.ledger import QUARANTINED, REWIND, Ledger, Record
from zellige_ray.errors import DataError, PoolError
from zellige_ray.files import write_file
from zellige_ray.models.specs import get_spec
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import (
    ComparisonEvent,
    Event,
    HeldOutEvent,
    MembershipEvent,
    NoteEvent,
    PreviewEvent,
    StepEvent,
)
from zellige_ray.monitor.figures import plan_flops
from zellige_ray.monitor.metrics import read_events
from zellige_ray.placement import Plan, plan_to_json
from zellige_ray.words import counted

KEPT_PLANS = 50
DRIVER = "driver"
RESTARTED = "the driver died and started again"
MEMORY = "memory"
MAX_RESTARTS = 5  # drivers in a row that committed nothing; then it is no accident
DISK_POLL_S = 2.0
FLOAT_BYTES = 4  # a preset wants a number; FLOPs don't depend on it

Where = Callable[[], tuple[int, int, Epoch]]


class Journal:
    """The one writer of the ledger."""

    def __init__(
        self,
        folder: Path,
        train: Index,
        config: RunConfig,
        tokens: Callable[[SampleMeta], int],
        emit: Callable[[Event], None],
    ) -> None:
        self._folder, self._train, self._steps, self._tokens, self._emit = folder, train, config.steps, tokens, emit
        self._ledger = Ledger(folder / run_folder.LEDGER, train)
        self._tally = Tally()
        self._model = get_spec(config.model.name).preset(config.model, FLOAT_BYTES)
        self._where: Where = lambda: (0, 0, Epoch(-1, ()))
        self._plans_fail = False

    def follow(self, where: Where) -> None:
        """where: the last committed step, the pass and the epoch, for events."""
        self._where = where

    def recall(self, memory: Memory) -> None:
        """Takes over the account of an earlier driver. Raises PoolError when drivers die without a step between."""
        for event in memory.history:
            self._tally.see(event)
        tail = [r for r in self._ledger.records() if r.event in (None, DRIVER)][-MAX_RESTARTS:]
        if len(tail) == MAX_RESTARTS and all(r.event == DRIVER for r in tail):
            raise PoolError(f"the driver died {MAX_RESTARTS} times without a step between: see its log for the cause")

    def resumed(self, step: int) -> None:
        """Takes over what earlier sessions of this run folder counted up to `step`; a step run again counts once."""
        path = self._folder / run_folder.METRICS
        counted: dict[tuple[type, int], StepEvent | HeldOutEvent] = {}
        for _, event in read_events(path) if path.is_file() else ():
            if isinstance(event, StepEvent | HeldOutEvent) and event.step <= step:
                counted[type(event), event.step] = event
        for event in counted.values():
            self._tally.see(event)

    def records(self) -> list[Record]:
        """The ledger so far."""
        return self._ledger.records()

    def last_commit(self) -> Record | None:
        """The newest step that counts."""
        return self._ledger.last_commit()

    def commit_of(self, step: int) -> Record | None:
        """The newest commit of a step; None when the run began behind it."""
        return next((r for r in reversed(self.records()) if r.event is None and r.step == step), None)

    def commit(
        self, step: int, pass_: int, ids: tuple[str, ...], plan_hash: str, epoch: Epoch, seconds: float, wait_s: float
    ) -> None:
        """Puts a step on the disk. A disk that refuses is waited for, visibly; DataError after `wait_s`."""
        record, end = Record(step, pass_, ids, plan_hash, epoch.number, epoch.size, seconds), time.monotonic() + wait_s
        said = False
        while True:
            try:
                self._ledger.append(record)
                return
            except DataError as fault:
                if time.monotonic() + DISK_POLL_S > end:
                    raise
                if not said:
                    self._emit(NoteEvent("warning", f"{fault}; waiting up to {wait_s:.0f} s for space"))
                said = True
                time.sleep(DISK_POLL_S)

    def rewound(self, step: int, detail: str) -> None:
        """The run goes on behind `step`; later commits are void."""
        self._event(REWIND, detail, step=step)

    def quarantined(self, samples: Sequence[str], why: str) -> None:
        """Samples can't be read; no pass owes them any more."""
        for sample in samples:
            self._event(QUARANTINED, sample)
        self._emit(NoteEvent("warning", f"{', '.join(samples)} can't be read, and set aside: {why}"))

    def starved(self, what: str) -> None:
        """Workers ran out of memory; the same batch is planned again."""
        self._event(MEMORY, what)

    def restarted(self, silent_s: float) -> None:
        """A driver took the place of one that died. silent_s: since the last sign of that one."""
        self._event(DRIVER, "started again; workers kept their processes", silent_s)
        text = f"{RESTARTED}; workers kept their processes; {silent_s:.1f} s since its last word"
        self._emit(NoteEvent("warning", text))

    def noticed(self, event: MembershipEvent | NoteEvent) -> None:
        """Passes on what the crew says; who joined or left goes to the ledger too."""
        if isinstance(event, MembershipEvent):
            replayed = f"; {counted(event.replayed, 'sample')} replayed" if event.change == "left" else ""
            self._event(event.change, f"{event.worker}: {event.reason}{replayed}", event.lost_s)
        self._emit(event)

    def stepped(
        self,
        step: int,
        pass_: int,
        epoch: Epoch,
        planned: Planned,
        votes: Sequence[Vote],
        samples: Sequence[SampleMeta],
        seconds: float,
    ) -> None:
        """Says that a step counts."""
        predicted = planned.plan.predicted
        assert predicted is not None
        images, tokens = sum(s.media == "image" for s in samples), sum(map(self._tokens, samples))
        self.tell(StepEvent(
            step=step, pass_=pass_, epoch=epoch.number, world_size=epoch.size,
            loss=votes[0].loss, grad_norm=votes[0].norm, lr=votes[0].lr,
            images=images, videos=len(samples) - images, samples=len(samples), tokens=tokens,
            tokens_left=self._tally.tokens_left(tokens, self._steps - step),
            seconds=seconds, plan_s=planned.seconds, predicted_s=predicted.step_s,
            lower_bound_s=predicted.lower_bound_s, plan_hash=planned.plan.hash, planned=predicted.ranks,
            measured=tuple(v.times for v in votes), started=min(v.started for v in votes),
            flops=plan_flops(planned.plan, self._model),
        ))  # fmt: skip
        self._keep_plan(step, planned.plan)

    def tell(self, event: StepEvent | HeldOutEvent | ComparisonEvent) -> None:
        """An event that the summary counts."""
        self._tally.see(event)
        self._emit(event)

    def show(self, event: PreviewEvent) -> None:
        """An event that no figure comes from."""
        self._emit(event)

    def summary(self, replans: int, stopped: bool) -> dict[str, Any]:
        """See `Tally.summary`."""
        return self._tally.summary(self._folder, self._train, replans, stopped)

    def close(self) -> None:
        """Closes the ledger."""
        self._ledger.close()

    def _event(self, name: str, detail: str, seconds: float = 0.0, step: int | None = None) -> None:
        now, pass_, epoch = self._where()
        at = now if step is None else step
        self._ledger.append(Record(at, pass_, (), "", epoch.number, epoch.size, seconds, name, detail))

    def _keep_plan(self, step: int, plan: Plan) -> None:
        folder = self._folder / run_folder.PLANS
        try:
            folder.mkdir(exist_ok=True)
            write_file(folder / f"step-{step:06d}.json", json.dumps(plan_to_json(plan)))
            (folder / f"step-{step - KEPT_PLANS:06d}.json").unlink(missing_ok=True)
        except OSError as fault:
            if not self._plans_fail:
                self._emit(NoteEvent("warning", f"plans are not kept: {fault.strerror or fault}; training goes on"))
            self._plans_fail = True
