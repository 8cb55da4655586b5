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
from zellige_ray.placement.step_curves import KernelWork, StepCurves

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


def fit_trials(
    curves: StepCurves, trials: Sequence[Trial], model: ModelPreset, rank: int, nodes: Sequence[int]
) -> StepCurves:
    """The curves with `shared_s`, `units` and `wander` such that the forecast says on average what the trials took.

    curves: of this rank, units as their kernels take alone, without the other two. nodes: of each rank. What took less
    than its parts counts as they do.
    """
    if not trials:
        return curves
    passes = model.layers * (3 if model.checkpointing == "full" else 2)
    bare = [_of_rank(curves, t, model, rank, nodes) for t in trials]
    fixed_s = curves.step_s + curves.round_s
    more = [(t.linear_s + fixed_s - f.linear_s) / passes for t, f in zip(trials, bare, strict=True)]
    curves = replace(curves, shared_s=max(0.0, sum(more) / len(more)), units=_units(curves, trials, model, rank, nodes))

    still = [_of_rank(curves, t, model, rank, nodes).exchange_s for t in trials]
    moved = [_of_rank(replace(curves, wander=LITTLE), t, model, rank, nodes).exchange_s for t in trials]
    waited = sum(t.exchange_s - s for t, s in zip(trials, still, strict=True))
    per_wander = sum(m - s for m, s in zip(moved, still, strict=True)) / LITTLE
    return replace(curves, wander=max(0.0, waited / per_wander))


def _units(
    curves: StepCurves, trials: Sequence[Trial], model: ModelPreset, rank: int, nodes: Sequence[int]
) -> KernelWork:
    """Kernels of units with what they take inside of a layer, where their operands have just come."""
    none = replace(curves, units=curves.units.scaled(LITTLE))
    alone_s, others_s = (sum(_of_rank(c, t, model, rank, nodes).attention_s for t in trials) for c in (curves, none))
    more_s = sum(t.attention_s for t in trials) - alone_s
    factor = 1 + more_s * (1 - LITTLE) / (alone_s - others_s)
    return curves.units.scaled(factor) if factor > 0 else curves.units


def _of_rank(curves: StepCurves, trial: Trial, model: ModelPreset, rank: int, nodes: Sequence[int]) -> RankForecast:
    size = len(nodes)
    state: State = "fsdp" if curves.sharded else "replicated"
    hardware = HardwareProfile("trial", 1, size, 1 << 50, 1e12, 1e12, 1e12, 1e12, 0.0, state=state, curves=curves)
    cluster = Cluster(tuple(nodes), (1 << 50,) * size, (1.0,) * size)
    return forecast(Plan(size, (trial.round,), "trial"), cluster, CostModel(hardware, model)).ranks[rank]
