"""Planning costs: measured curves as the few constants that the planner counts with thousands of times per batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zellige_ray.placement.curves import Curve, FloatArray
from zellige_ray.placement.model import ModelPreset
from zellige_ray.placement.step_curves import KernelWork, StepCurves, TokenWork

LENGTHS = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384, 65536)
TYPICAL_TOKENS = 2048  # of a rank, where a curve of tokens is read as one rate
TYPICAL_TEXT, TYPICAL_QUERIES = 32, 512


@dataclass(frozen=True, slots=True)
class PlanningCosts:
    """Seconds per layer over all passes, as `CostModel` names them. attention_curve: (length, share of the best)."""

    linear_token_s: float
    cross_token_s: float
    piece_s: float
    cell_s: float
    attention_curve: tuple[tuple[float, float], ...]
    latency_s: float


def planning_costs(curves: StepCurves, model: ModelPreset) -> PlanningCosts:
    """The constants of measured curves; what lies outside of layers is spread over them."""
    cells_S = attention_cells(curves, model, np.array(LENGTHS, dtype=np.float64))
    small = float(curves.node.both_ways(1024.0))
    return PlanningCosts(
        linear_token_s=_per_layer(curves, model, lambda work: _rate(work.tokens)),
        cross_token_s=_cross_token_s(curves.whole, model) if model.text == "cross" else 0.0,
        piece_s=_per_layer(curves, model, lambda work: _each(work.pieces) + _rate(work.text, 1.0) * TYPICAL_TEXT),
        cell_s=float(cells_S.min()),
        attention_curve=tuple(zip(map(float, LENGTHS), (cells_S.min() / cells_S).tolist(), strict=True)),
        latency_s=small * (model.forwards + 1),
    )


def attention_cells(curves: StepCurves, model: ModelPreset, lengths_S: FloatArray) -> FloatArray:
    """Seconds of one head x query x key of whole sequences, all passes."""
    work = curves.whole
    calls = (model.forwards * work.forward_call_s + work.backward_call_s) / model.heads
    seconds_S = model.forwards * work.forward(lengths_S, lengths_S) + work.backward(lengths_S, lengths_S) + calls
    return np.asarray(seconds_S / lengths_S**2)


def linear_rate(curves: StepCurves, model: ModelPreset) -> float:
    """Token-wise FLOP/s, by the planner's formula of FLOPs per token. For people, and for profiles without curves."""
    passes = 4 if model.checkpointing == "full" else 3
    kv = 4 + 4 / model.head_group
    flops = (kv + 4 * model.mlp_ratio) * model.hidden**2 * passes
    return flops / max(_per_layer(curves, model, lambda work: _rate(work.tokens)), 1e-15)


def attention_rate(curves: StepCurves, model: ModelPreset) -> float:
    """FLOP/s of attention at its best length."""
    passes = 4 if model.checkpointing == "full" else 3
    cells_S = attention_cells(curves, model, np.array(LENGTHS, dtype=np.float64))
    return 4 * model.hidden / model.heads * passes / float(cells_S.min())


def _per_layer(curves: StepCurves, model: ModelPreset, figure: Callable[[TokenWork], float]) -> float:
    inside = [curves.block_forward, curves.block_recompute, curves.block_backward]
    outside = [curves.load, curves.outside_forward, curves.outside_backward]
    return sum(figure(work) for work in inside) + sum(figure(work) for work in outside) / model.layers


def _rate(curve: Curve, at: float = TYPICAL_TOKENS) -> float:
    """Seconds of one more, on the way from nothing to `at` or to the end of the curve."""
    end = min(at, curve.x[-1]) if len(curve.x) > 1 and at > curve.x[0] else curve.x[-1]
    if end <= curve.x[0]:
        return curve.slope if len(curve.x) > 1 else 0.0
    return float(curve(end) - curve(curve.x[0])) / (end - curve.x[0])


def _each(curve: Curve) -> float:
    """Seconds of one more piece."""
    return _rate(curve, curve.x[-1])


def _cross_token_s(work: KernelWork, model: ModelPreset) -> float:
    seconds = model.forwards * work.forward(TYPICAL_QUERIES, TYPICAL_TEXT) + work.backward(
        TYPICAL_QUERIES, TYPICAL_TEXT
    )
    return float(seconds) * model.heads / (TYPICAL_QUERIES * TYPICAL_TEXT)
