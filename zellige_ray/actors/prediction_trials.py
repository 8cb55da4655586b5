"""Prediction trials: plans that no figure was fitted to, predicted from a profile and run on ranks of this machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zellige_ray.actors.messages import Decision, Order
from zellige_ray.actors.planning import lengths
from zellige_ray.actors.process_worker import Timed
from zellige_ray.actors.rank_processes import RankProcesses
from zellige_ray.attention.tilings import random_round, whole_round
from zellige_ray.config import RunConfig
from zellige_ray.data.index import SampleMeta
from zellige_ray.models.specs import ModelSpec
from zellige_ray.placement import Cluster, CostModel, ModelPreset, Plan, make_plan, simulate
from zellige_ray.placement import Sequence as Lengths
from zellige_ray.placement.forecast import Forecast, forecast
from zellige_ray.placement.memory import MemoryModel
from zellige_ray.placement.plan import Round

RANDOM, WHOLE = "random", "whole"
# Three plans of each batch; random tilings use everything that the engine can run.
ROSTER = (
    ("dp", "cp", RANDOM), ("zellige", "even", RANDOM), ("bags:all", "zellige", RANDOM), ("dp", "even", RANDOM),
    ("cp", "zellige", RANDOM), ("bags:all", "dp", RANDOM), ("zellige", "cp", RANDOM),
)  # fmt: skip
# (frames, rows, columns) in tokens, caption tokens: pictures and clips
GRIDS = (
    ((1, 8, 8), 6), ((1, 10, 12), 9), ((1, 12, 12), 12), ((1, 8, 12), 4), ((1, 16, 16), 8), ((1, 12, 16), 20),
    ((1, 16, 12), 7), ((1, 6, 8), 3), ((1, 10, 10), 11), ((1, 14, 14), 15), ((2, 12, 12), 9), ((3, 12, 12), 14),
    ((4, 12, 16), 10), ((6, 12, 12), 12), ((8, 12, 12), 6), ((5, 16, 16), 18), ((1, 16, 20), 5), ((1, 20, 20), 9),
    ((2, 16, 16), 7), ((10, 12, 12), 22), ((1, 8, 10), 13), ((1, 10, 12), 6), ((1, 24, 24), 10), ((12, 12, 12), 8),
)  # fmt: skip
SIZES = ((2, 3), (3, 5), (5, 6), (3, 4), (6, 8), (2, 2), (4, 6))  # samples of each batch, fewest and most


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan and the samples it places."""

    policy: str
    plan: Plan
    samples: tuple[SampleMeta, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Medians over the repeats of a trial. Units: seconds.

    step_s: wall, from the first rank's start to the last one's end. cpu_s: processor time of the busiest rank. noise,
    cpu_noise: mean distance of a repeat from the median, relative. phases: (linear, attention, exchange, idle) by rank.
    """

    step_s: float
    cpu_s: float
    noise: float
    cpu_noise: float
    phases: tuple[tuple[float, float, float, float], ...]

    @property
    def exchange_share(self) -> float:
        """Share of the step that the rank with the most exchange spends in it, waiting included."""
        return max(exchange for _, _, exchange, _ in self.phases) / self.step_s


def held_out_trials(
    samples: Sequence[SampleMeta], spec: ModelSpec, cluster: Cluster, cost: CostModel, count: int, seed: int
) -> list[Trial]:
    """Plans of different batches by different policies, and random valid tilings; on one rank a batch has one plan."""
    trials: list[Trial] = []
    roster = ROSTER if cluster.world_size > 1 else (("zellige",),) * count
    for number, policies in enumerate(roster):
        rng = np.random.default_rng([seed, number])
        low, high = SIZES[number % len(SIZES)]
        batch = [samples[i] for i in rng.permutation(len(samples))[: int(rng.integers(low, high + 1))]]
        for policy in policies:
            if len(trials) < count:
                trials.append(Trial(policy, _plan(policy, batch, spec, cluster, cost, rng), tuple(batch)))
    return trials


def whole_trial(samples: Sequence[SampleMeta], spec: ModelSpec, size: int, model: ModelPreset) -> Trial:
    """Sample i whole on rank i of so many, whatever memory they have."""
    rows = lengths(samples, spec)
    tokens, texts = _tokens(rows, model)
    round_ = whole_round(tokens, range(len(rows)), model.heads, texts)
    return Trial(WHOLE, _one_round(rows, round_, size, WHOLE), tuple(samples))


def grids(scale: int) -> list[tuple[tuple[int, int, int], int]]:
    """GRIDS with so many times the rows and columns."""
    return [((frames, scale * rows, scale * columns), text) for (frames, rows, columns), text in GRIDS]


def mixed_batches(samples: Sequence[SampleMeta], count: int, seed: int) -> list[tuple[SampleMeta, ...]]:
    """Batches of eight to twelve pictures and one to three clips."""
    pictures = [s for s in samples if s.media == "image"]
    clips = [s for s in samples if s.media == "video"]
    out = []
    for number in range(count):
        rng = np.random.default_rng([seed, 77, number])
        few = [clips[i] for i in rng.permutation(len(clips))[: int(rng.integers(1, 4))]]
        many = [pictures[i] for i in rng.permutation(len(pictures))[: int(rng.integers(8, 13))]]
        out.append((*few, *many))
    return out


def run_trials(
    ranks: RankProcesses, trials: Sequence[Trial], repeats: int, say: Callable[[str], None], seed: int = 0
) -> list[Outcome]:
    """Steps of all trials, in another order each time; the first turn warms up and does not count."""
    rng = np.random.default_rng(seed)
    runs: list[list[list[Timed]]] = [[] for _ in trials]
    step = ranks.steps
    for turn in range(repeats + 1):
        say(f"steps, turn {turn} of {repeats}")
        for number in rng.permutation(len(trials)).tolist():
            trial = trials[number]
            order = Order(0, Decision(step), trial.plan, trial.samples)
            done = ranks.call("step", [(order,)] * ranks.epoch.size)
            step += 1
            if turn:
                runs[number].append(done)
    ranks.steps = step
    return [_outcome(run) for run in runs]


def weighed(ranks: RankProcesses) -> MemoryModel:
    """The heaviest memory model that any rank finds for itself."""
    models: list[MemoryModel] = [t.value.value for t in ranks.call("weigh", [(0,)] * ranks.epoch.size)]
    return max(models, key=MemoryModel.token_bytes)


def count_peaks(ranks: RankProcesses, trials: Sequence[Trial]) -> list[int]:
    """Most bytes that tensors of any rank hold in a step of each trial, counted one by one; behind all timed steps."""
    peaks = []
    for trial in trials:
        order = Order(0, Decision(ranks.steps), trial.plan, trial.samples)
        peaks.append(max(t.value.value for t in ranks.call("peak", [(order, True)] * ranks.epoch.size)))
    return peaks


def predicted_peaks(trials: Sequence[Trial], cluster: Cluster, cost: CostModel) -> list[int]:
    """What the memory model of `cost` says of the fullest rank of each trial."""
    plans = [trial.plan for trial in trials]
    return [max(rank.peak_bytes for rank in simulate(plan, cluster, cost).ranks) for plan in plans]


def _outcome(runs: Sequence[Sequence[Timed]]) -> Outcome:
    walls = [max(t.ended for t in run) - min(t.began for t in run) for run in runs]
    wall, size = statistics.median(walls), len(runs[0])
    cpus = max(([run[rank].cpu_s for run in runs] for rank in range(size)), key=statistics.median)
    cpu = statistics.median(cpus)
    phases = []
    for rank in range(size):
        times = [run[rank].value.value.times for run in runs]
        names = ("linear_s", "attention_s", "exchange_s", "idle_s")
        a, b, c, d = (statistics.median(getattr(t, name) for t in times) for name in names)
        phases.append((a, b, c, d))
    return Outcome(
        wall,
        cpu,
        statistics.fmean(abs(w / wall - 1) for w in walls),
        statistics.fmean(abs(c / cpu - 1) for c in cpus),
        tuple(phases),
    )


def predictions(trials: Sequence[Trial], cluster: Cluster, cost: CostModel) -> list[Forecast]:
    """The forecasts of all trials."""
    return [forecast(trial.plan, cluster, cost) for trial in trials]


def _plan(
    policy: str, batch: Sequence[SampleMeta], spec: ModelSpec, cluster: Cluster, cost: CostModel, rng: Any
) -> Plan:
    rows = lengths(batch, spec)
    if policy != RANDOM:
        name = f"bags:g{cluster.world_size}n1" if policy == "bags:all" else policy
        return make_plan(rows, cluster, cost, name)
    tokens, texts = _tokens(rows, cost.model)
    round_ = random_round(rng, tokens, cluster.world_size, cost.model.heads, texts)
    return _one_round(rows, round_, cluster.world_size, RANDOM)


def _tokens(rows: Sequence[Lengths], model: ModelPreset) -> tuple[list[int], list[int]]:
    """Tokens of each sequence as rounds count them, and of its caption."""
    joint = model.text == "joint"
    return [r.tokens + joint * r.text_tokens for r in rows], [r.text_tokens for r in rows]


def _one_round(rows: Sequence[Lengths], round_: Round, size: int, policy: str) -> Plan:
    return Plan(size, (replace(round_, ids=tuple(r.id for r in rows)),), policy)


def model_settings(layers: int, heads: int, head_dim: int, checkpointing: str) -> dict[str, Any]:
    """Of the model that trials run."""
    return {"name": "dit", "layers": layers, "heads": heads, "head_dim": head_dim, "checkpointing": checkpointing}


__all__ = [
    "Outcome", "RunConfig", "Trial", "count_peaks", "grids", "held_out_trials", "mixed_batches",
    "model_settings", "predicted_peaks", "predictions", "run_trials", "weighed", "whole_trial",
]  # fmt: skip
