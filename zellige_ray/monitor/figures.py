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


def flops_per_s(steps: Sequence[StepEvent]) -> float | None:
    """FLOPs done / (seconds x ranks): what a rank achieves; None where nobody counted FLOPs.

    seconds: of whole steps, from dispatch to commit, so that waiting and exchange count against it.
    """
    done = [s for s in steps if s.flops > 0]
    rank_s = sum(s.seconds * s.world_size for s in done)
    return sum(s.flops for s in done) / rank_s if rank_s > 0 else None


def hfu(steps: Sequence[StepEvent], peak_flops: float) -> float | None:
    """Hardware FLOP utilization: `flops_per_s` over the peak FLOP/s of a rank; None where either is unknown."""
    achieved = flops_per_s(steps)
    return achieved / peak_flops if achieved is not None and peak_flops > 0 else None


def flops_text(rate: float) -> str:
    """`12.3 TFLOP/s`: a rate in the unit that leaves one to three digits before the point."""
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if rate >= unit:
            return f"{rate / unit:.3g} {name}FLOP/s"
    return f"{rate:.3g} FLOP/s"


def prediction_errors(steps: Sequence[StepEvent]) -> list[float]:
    """Measured over predicted time of each step, minus one: 0.1 is ten percent slower than planned."""
    return [s.seconds / s.predicted_s - 1 for s in steps if s.predicted_s > 0 and math.isfinite(s.seconds)]
