"""Trials of whole steps: policies timed against each other on the same batches, interleaved, two ranks over a link.

Everything is that of a run: workers, engine, profile, planner. Only Ray is left out, and nothing is drawn from the data
set twice: the batches are fixed. A step is from the order to the last rank's vote: the optimizer on the gradients of
the step before, latents read, forward, backward, gradients reduced. Plans are made ahead, as in a run.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from zellige_ray.actors.crew import Crew
from zellige_ray.actors.memory_guard import MemoryGuard
from zellige_ray.actors.messages import Decision, Order
from zellige_ray.actors.planning import Planner, lengths
from zellige_ray.actors.process_pool import ProcessPool
from zellige_ray.actors.rates import measure_rates
from zellige_ray.actors.speeds import Speeds
from zellige_ray.config import RunConfig
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.mini_latents import write_mini_latents
from zellige_ray.errors import DataError, PoolError
from zellige_ray.models.specs import get_spec
from zellige_ray.monitor.events import RankTimes
from zellige_ray.placement import CostModel, HardwareProfile, Plan, make_plan
from zellige_ray.placement.policies.bags import all_specs, spec_text

RANKS = 2
IMAGES, CLIPS = (8, 12), (1, 3)  # of a batch, from and to
IDLE = 0.3  # of all rank seconds, with every sequence whole: what a batch must offer to be worth a comparison
DRAWS = 1000  # batches drawn in search of those

RATES = (50.0, 2000.0)  # of a link, megabits per second
FIRST_MBIT_S, SEARCH_STEPS, SEARCH_REPEATS, SEARCH_TOLERANCE = 400.0, 6, 2, 0.02

Batch = tuple[SampleMeta, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One timed step. sent_bytes: exchanges, all ranks. times: by rank. Units: seconds, bytes."""

    seconds: float
    sent_bytes: int
    times: tuple[RankTimes, ...]

    @property
    def exchange_share(self) -> float:
        """Share of the step that ranks spend in exchanges, on average: packing, posting, waiting, unpacking."""
        return statistics.fmean(t.exchange_s for t in self.times) / self.seconds

    @property
    def idle_share(self) -> float:
        """Share of the ranks' compute time that the less loaded ones have nothing to compute."""
        busy = [t.linear_s + t.attention_s for t in self.times]
        return 1 - statistics.fmean(busy) / max(busy)


class StepTrials:
    """Two workers that run one plan after another; made by `step_trials`."""

    def __init__(self, config: RunConfig, pool: ProcessPool) -> None:
        self._config, self._pool = config, pool
        self._spec = get_spec(config.model.name)
        self._model = self._spec.preset(config.model, config.engine.dtype_bytes)
        self._decided = Decision(0)
        self._crew = Crew(pool, config.workers, lambda: self._decided, _refuse, lambda epoch: None)
        self._crew.start(RANKS, None)

    def limit(self, mbit_s: float) -> None:
        """Sets the rate of the link, in megabits per second and direction."""
        if self._pool.link is None:
            raise PoolError("there is no link whose rate could be set: the ranks talk over loopback")
        self._pool.link.set_rate(mbit_s)

    def planner(self, batches: Sequence[Batch]) -> Planner:
        """A planner that counts with what the workers measure now, link included.

        Speeds are corrected by two steps of each batch, as in a run: a rank that something slowed while it was measured
        is not slow.
        """
        rates = measure_rates(self._config, self._model, self._crew)
        hardware, speeds = rates.hardware, rates.speeds
        epoch, first = self._crew.epoch, self._planner(hardware, speeds)
        for batch in (*batches, *batches):  # the first ones warm up
            planned = first.plan(batch, epoch)
            assert planned.plan.predicted is not None
            times = self.step(planned.plan, batch).times
            speeds.see(epoch.workers, planned.speeds, planned.plan.predicted.ranks, times)
        return self._planner(hardware, speeds)

    def speeds(self, planner: Planner) -> list[float]:
        """Relative speed of each rank, as the planner sees it."""
        return [planner.speeds.of(worker) for worker in self._crew.epoch.workers]

    def plans(self, planner: Planner, batches: Sequence[Batch], policy: str) -> tuple[Plan, ...]:
        """The plan of each batch."""
        return tuple(planner.plan(batch, self._crew.epoch, policy).plan for batch in batches)

    def step(self, plan: Plan, batch: Batch) -> Step:
        """Runs one step and times it. Raises PoolError when a worker is lost."""
        order = Order(self._crew.epoch.number, self._decided, plan, batch)
        before = self._sent_bytes()
        start = perf_counter()
        replies = self._crew.all("step", lambda epoch: {w: (order,) for w in epoch.workers})
        seconds = perf_counter() - start
        votes = [replies[w].value for w in self._crew.epoch.workers]
        self._decided = Decision(votes[0].step, votes[0].finite)
        return Step(seconds, self._sent_bytes() - before, tuple(vote.times for vote in votes))

    def interleaved(
        self, batches: Sequence[Batch], plans: Mapping[str, Sequence[Plan]], repeats: int, warm_ups: int = 1
    ) -> dict[str, list[list[Step]]]:
        """Steps of each policy, by repeat and batch. Policies that plan a batch alike share its steps.

        The order of the policies turns with every repeat.
        """
        out: dict[str, list[list[Step]]] = {policy: [] for policy in plans}
        for repeat in range(-warm_ups, repeats):
            steps: dict[str, list[Step]] = {policy: [] for policy in plans}
            for k, batch in enumerate(batches):
                distinct = list({policies[k].hash: policies[k] for policies in plans.values()}.values())
                turn = repeat % len(distinct)
                timed = {plan.hash: self.step(plan, batch) for plan in distinct[turn:] + distinct[:turn]}
                for policy, its in plans.items():
                    steps[policy].append(timed[its[k].hash])
            if repeat >= 0:
                for policy, its_steps in steps.items():
                    out[policy].append(its_steps)
        return out

    def find_rate(self, batches: Sequence[Batch], plans: Sequence[Plan], share: float) -> float:
        """Sets and returns the rate at which steps of these plans spend `share` of their time in exchanges.

        Exchange is taken as a constant and a part that shrinks with the rate; two rates tell both, a few settle it.
        Raises PoolError where no rate between `RATES` gives it.
        """
        rate, seen = FIRST_MBIT_S, list[tuple[float, float]]()
        for _ in range(SEARCH_STEPS):
            self.limit(rate)
            steps = [s for r in self.interleaved(batches, {"": plans}, SEARCH_REPEATS)[""] for s in r]
            found = statistics.median(s.exchange_share for s in steps)
            if abs(found - share) <= SEARCH_TOLERANCE:
                return rate
            total = statistics.fmean(s.seconds for s in steps)
            seen.append((1 / rate, found * total))
            (x0, y0), (x1, y1) = seen[-2] if len(seen) > 1 else (0.0, 0.0), seen[-1]
            slope = (y1 - y0) / (x1 - x0)
            wanted = share / (1 - share) * (1 - found) * total
            inverse = x1 + (wanted - y1) / slope if slope > 0 else x1 * wanted / y1
            rate = min(max(1 / inverse if inverse > 0 else RATES[1], RATES[0]), RATES[1])
        raise PoolError(
            f"no rate between {RATES[0]:g} and {RATES[1]:g} Mbit/s makes exchanges {share:.0%} of a step, "
            f"the last one tried gives {found:.0%}"
        )

    def static_specs(self) -> list[str]:
        """Every bag spec of the two ranks, as policies."""
        return [f"bags:{spec_text(spec)}" for spec in all_specs(RANKS, self._config.model.heads)]

    def _planner(self, hardware: HardwareProfile, speeds: Speeds) -> Planner:
        guard = MemoryGuard(self._config.placement.memory_margin, _refuse)
        return Planner(self._spec, self._model, hardware, speeds, "zellige", guard)

    def _sent_bytes(self) -> int:
        replies = self._crew.all("sent_bytes", lambda epoch: {w: () for w in epoch.workers})
        return sum(int(reply.value) for reply in replies.values())


@contextmanager
def step_trials(
    config: RunConfig, linked: bool, first: bool = False, fraction: int = 1
) -> Iterator[tuple[StepTrials, Index]]:
    """Workers that are set up, and the samples they can read; all of it gone afterwards. See `ProcessPool`."""
    with tempfile.TemporaryDirectory(prefix="zellige-step-") as name:
        scratch = Path(name)
        cache = write_mini_latents(scratch / "latents", config.seed, fraction)
        with ProcessPool(config, cache.folder, scratch, linked, first) as pool:
            yield StepTrials(config, pool), cache.index()


def draw_batches(index: Index, config: RunConfig, num: int, idle: float = IDLE) -> list[Batch]:
    """Mixed batches on which `dp` idles for that share, by the FLOPs alone: the same for a seed on every machine."""
    spec = get_spec(config.model.name)
    even = HardwareProfile("even", 1, RANKS, 1 << 50, 1e10, 1e10, 1e12, 1e12, 0.0, state="replicated")
    cost, rng = (
        CostModel(even, spec.preset(config.model, config.engine.dtype_bytes)),
        np.random.default_rng(config.seed),
    )
    images, clips = ([s for s in index.samples if s.media == media] for media in ("image", "video"))
    out: list[Batch] = []
    for _ in range(DRAWS):
        batch = tuple(_some(rng, images, IMAGES) + _some(rng, clips, CLIPS))
        plan = make_plan(lengths(batch, spec), even.cluster(), cost, "dp")
        assert plan.predicted is not None
        if sum(rank.idle_s for rank in plan.predicted.ranks) >= idle * RANKS * plan.predicted.step_s:
            out.append(batch)
        if len(out) == num:
            return out
    raise DataError(f"{len(out)} of {DRAWS} drawn batches leave `dp` idle for {idle:.0%}, {num} are needed")


def _some(rng: np.random.Generator, samples: Sequence[SampleMeta], limits: tuple[int, int]) -> list[SampleMeta]:
    num = int(rng.integers(limits[0], limits[1] + 1))
    return [samples[i] for i in sorted(rng.choice(len(samples), num, replace=False).tolist())]


def _refuse(event: Any) -> None:
    """A worker that leaves ends the trial: what is left would be another comparison."""
    raise PoolError(f"the trial is over: {event.reason if hasattr(event, 'reason') else event.text}")
