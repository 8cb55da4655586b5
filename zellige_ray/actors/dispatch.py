"""Dispatch: one method of all workers on a plan of samples, planned anew until all who are left have answered well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from zellige_ray.actors.batches import Batches
from zellige_ray.actors.commit import CommitRule
from zellige_ray.actors.crew import CorruptSamples, Crew, WorkersStarved
from zellige_ray.actors.journal import Journal
from zellige_ray.actors.messages import Epoch, Order, Reply
from zellige_ray.actors.planning import Planned, Planner
from zellige_ray.actors.pool import Gathered
from zellige_ray.data.index import SampleMeta
from zellige_ray.errors import OutOfMemory, PlanError

MAX_STARVED = 5  # plans of one batch that workers could not hold


class Dispatch:
    """`planner` is there once rates are known."""

    planner: Planner

    def __init__(self, crew: Crew, batches: Batches, journal: Journal, rule: CommitRule) -> None:
        self._crew, self._batches, self._journal, self._rule = crew, batches, journal, rule

    def run(
        self,
        method: str,
        samples: Sequence[SampleMeta],
        pass_: int = 0,
        policy: str | None = None,
        steps: int = 0,
        meanwhile: Callable[[Epoch], None] | None = None,
        judge: Callable[[Epoch, Gathered], bool] = lambda epoch, gathered: gathered.complete,
    ) -> tuple[Planned, Mapping[str, Reply], tuple[SampleMeta, ...]]:
        """Returns the plan, the replies, and the samples without those that could not be read.

        meanwhile, judge: see `Crew.all`. Raises CorruptSamples when no sample is left, OutOfMemory when workers can't
        hold the batch however it is planned.
        """
        left, starved, made = tuple(samples), list[str](), dict[int, Planned]()
        while True:

            def orders(epoch: Epoch, left: tuple[SampleMeta, ...] = left) -> dict[str, tuple[Order]]:
                planned = made[epoch.number] = self._plan(left, epoch, policy, starved)
                plan = planned.plan
                order = Order(epoch.number, self._rule.decided, plan, left, pass_, steps)
                return {w: (order,) for w in epoch.workers}

            try:
                replies = self._crew.all(method, orders, meanwhile, len(left), judge)
                return self.planner.plan(left, self._crew.epoch, policy), replies, left
            except CorruptSamples as found:
                self._journal.quarantined(found.ids, str(found))
                self._batches.refuse(found.ids)
                left = self._batches.readable(left)
                if not left:
                    raise
            except WorkersStarved as found:
                starved.append(self.planner.starve(found.epoch, made[found.epoch.number].plan, found.workers))
                self._journal.starved(starved[-1])
                if len(starved) >= MAX_STARVED:
                    raise OutOfMemory(f"{method} ran out of memory {MAX_STARVED} times: {starved[-1]}") from found

    def _plan(self, samples: Sequence[SampleMeta], epoch: Epoch, policy: str | None, starved: list[str]) -> Planned:
        try:
            return self.planner.plan(samples, epoch, policy)
        except PlanError as fault:
            if starved:
                raise OutOfMemory(f"{starved[-1]}; no plan takes less: {fault}") from fault
            raise
