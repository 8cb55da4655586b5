"""Figures: what a step's numbers say, by formulas that are written down once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zellige_ray.monitor.events import StepEvent
from zellige_ray.placement import ModelPreset, Plan

PASSES = {"none": 3, "full": 4}  # forward, backward at twice its price, and the recomputed forward


def plan_flops(plan: Plan, model: ModelPreset) -> float:
    """Floating-point operations of one step, on all ranks together, a product and its sum being two.

    layers x passes x sum over sequences of n ((4 + 4/g + 4 mlp_ratio) h^2 + 4 h n + 4 h t), with n tokens of attention
    length, t text tokens where the model attends to them across, h hidden width, g query heads per key/value head.
    Passes are those that run, recomputation of checkpointed blocks included: this is the H of HFU, MFU leaves it out.
    Embeddings, normalisation and the last projection are not counted.
    """
    hidden = model.hidden
    linear = (4 + 4 / model.head_group + 4 * model.mlp_ratio) * hidden**2
    crossed = 4.0 * hidden if model.text == "cross" else 0.0
    per_layer = 0.0
    for round_ in plan.rounds:
        n_S, t_S = round_.tokens_S.astype(float), round_.text_tokens_S.astype(float)
        per_layer += float((n_S * (linear + 4 * hidden * n_S + crossed * t_S)).sum())
    return model.layers * PASSES[model.checkpointing] * per_layer


def hfu(steps: Sequence[StepEvent], peak_flops: float) -> float | None:
    """Hardware FLOP utilization: FLOPs done / (seconds x ranks x peak FLOP/s of a rank); None without FLOPs.

    seconds: of whole steps, from dispatch to commit, so that waiting and exchange count against it. It may pass 1 where
    the peak is the measured linear rate and attention runs faster than that.
    """
    counted = [s for s in steps if s.flops > 0]
    rank_s = sum(s.seconds * s.world_size for s in counted)
    return sum(s.flops for s in counted) / (rank_s * peak_flops) if rank_s > 0 and peak_flops > 0 else None


def prediction_errors(steps: Sequence[StepEvent]) -> list[float]:
    """Measured over predicted time of each step, minus one: 0.1 is ten percent slower than planned."""
    return [s.seconds / s.predicted_s - 1 for s in steps if s.predicted_s > 0 and math.isfinite(s.seconds)]
