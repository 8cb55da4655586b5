"""Trials: whole forward and backward passes, with sequences that two ranks share, run as a step runs them.

They show what parts that were measured one by one do not: what attention takes beside its kernels, what sharing takes
beside its exchanges, and how far ranks that do the same drift apart before they meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zellige_ray.placement import Cluster, CostModel, HardwareProfile, ModelPreset, Plan
from zellige_ray.placement.forecast import RankForecast, forecast
from zellige_ray.placement.hardware import State
from zellige_ray.placement.plan import Round
from zellige_ray.placement.step_curves import StepCurves

LITTLE = 1e-3  # of what the forecast is linear in


@dataclass(frozen=True, slots=True)
class Trial:
    """A round that was run, and this rank's seconds for it; linear_s: all that is neither attention nor exchange."""

    round: Round
    linear_s: float
    attention_s: float
    exchange_s: float


def halved_round(tokens: int, heads: int, pairs: Sequence[tuple[int, int]], text: int = 0) -> Round:
    """A sequence for each pair of ranks: tokens and heads cut evenly, or queries where there is one head.

    tokens: of each sequence, captions of joint models included. text: tokens of each caption.
    """
    middle, half = tokens // 2, heads // 2
    count = len(pairs)
    shards, tiles = [], []
    for s, (a, b) in enumerate(pairs):
        shards += [(s, a, 0, middle), (s, b, middle, tokens)]
        if heads > 1:
            tiles += [(s, a, 0, half, 0, tokens), (s, b, half, heads, 0, tokens)]
        else:
            tiles += [(s, a, 0, 1, 0, middle), (s, b, 0, 1, middle, tokens)]
    return Round(
        ids=tuple(f"shared-{s}" for s in range(count)),
        tokens_S=np.full(count, tokens, dtype=np.int64),
        text_tokens_S=np.full(count, text, dtype=np.int64),
        shards_K4=np.array(shards, dtype=np.int64).reshape(-1, 4),
        tiles_M6=np.array(tiles, dtype=np.int64).reshape(-1, 6),
    )


@dataclass(frozen=True, slots=True)
class Sharing:
    """What trials say of ranks that share. units: seconds of their kernels over those of kernels alone. shared_s,
    wander: as in the curves.
    """

    units: float = 1.0
    shared_s: float = 0.0
    wander: float = 0.0

    def on(self, curves: StepCurves) -> StepCurves:
        """The curves of parts, with what they leave out."""
        return replace(curves, units=curves.units.scaled(self.units), shared_s=self.shared_s, wander=self.wander)


def fit_trials(
    curves: StepCurves, trials: Sequence[Trial], model: ModelPreset, rank: int, nodes: Sequence[int]
) -> Sharing:
    """What makes the forecast say on average what the trials took; what took less than its parts counts as they do.

    curves: of this rank, of parts. nodes: of each rank.
    """
    if not trials:
        return Sharing()
    bare = [_of_rank(curves, t, model, rank, nodes) for t in trials]
    fixed_s, passes = curves.step_s + curves.round_s, model.layers * (model.forwards + 1)
    more = [(t.linear_s + fixed_s - f.linear_s) / passes for t, f in zip(trials, bare, strict=True)]
    found = Sharing(_units(curves, trials, bare, model, rank, nodes), max(0.0, sum(more) / len(more)))

    still, moved = (
        [_of_rank(replace(found, wander=w).on(curves), t, model, rank, nodes).exchange_s for t in trials]
        for w in (0.0, LITTLE)
    )
    waited = sum(t.exchange_s - s for t, s in zip(trials, still, strict=True))
    per_wander = sum(m - s for m, s in zip(moved, still, strict=True)) / LITTLE
    return replace(found, wander=max(0.0, waited / per_wander))


def _units(
    curves: StepCurves,
    trials: Sequence[Trial],
    bare: Sequence[RankForecast],
    model: ModelPreset,
    rank: int,
    nodes: Sequence[int],
) -> float:
    """Kernels of units inside of a layer, where their operands have just come, over the same alone."""
    none = replace(curves, units=curves.units.scaled(LITTLE))
    alone_s = sum(f.attention_s for f in bare)
    units_s = (alone_s - sum(_of_rank(none, t, model, rank, nodes).attention_s for t in trials)) / (1 - LITTLE)
    factor = 1 + (sum(t.attention_s for t in trials) - alone_s) / units_s
    return factor if factor > 0 else 1.0


def _of_rank(curves: StepCurves, trial: Trial, model: ModelPreset, rank: int, nodes: Sequence[int]) -> RankForecast:
    size = len(nodes)
    state: State = "fsdp" if curves.sharded else "replicated"
    hardware = HardwareProfile("trial", 1, size, 1 << 50, 1e12, 1e12, 1e12, 1e12, 0.0, state=state, curves=curves)
    cluster = Cluster(tuple(nodes), (1 << 50,) * size, (1.0,) * size)
    return forecast(Plan(size, (trial.round,), "trial"), cluster, CostModel(hardware, model)).ranks[rank]
