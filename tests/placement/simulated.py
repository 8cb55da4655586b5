"""Curves of a machine that does not exist: every part of a step takes what is said here, exactly."""

from __future__ import annotations

from zellige_ray.placement.curves import Curve, Surface
from zellige_ray.placement.step_curves import CopyWork, KernelWork, StepCurves, TokenWork, WireWork

GRID = (1.0, 64.0, 4096.0)


def line(fixed_s: float, each_s: float, end: float = 4096.0) -> Curve:
    return Curve((0.0, end), (fixed_s, fixed_s + each_s * end))


def tokens(fixed_s: float, token_s: float, text_s: float = 0.0, piece_s: float = 0.0) -> TokenWork:
    return TokenWork(line(fixed_s, token_s), line(0.0, text_s, 64.0), line(0.0, piece_s, 64.0))


def kernel(forward_cell_s: float, backward_cell_s: float, call_s: float = 0.0) -> KernelWork:
    def surface(cell_s: float) -> Surface:
        return Surface(GRID, GRID, tuple(tuple(cell_s * q * k for k in GRID) for q in GRID))

    return KernelWork(surface(forward_cell_s), surface(backward_cell_s), call_s, call_s)


def simulated_curves(width: int = 128, heads: int = 4, **changes: object) -> StepCurves:
    """Round figures: 1 us per token and layer forward, 2 backward; 1 ns per cell forward, 2 backward; 1 GB/s."""
    values: dict[str, object] = {
        "load": tokens(0.0, 0.0),
        "outside_forward": tokens(0.0, 0.0),
        "outside_backward": tokens(0.0, 0.0),
        "block_forward": tokens(0.0, 1e-6),
        "block_recompute": tokens(0.0, 0.0),
        "block_backward": tokens(0.0, 2e-6),
        "whole": kernel(1e-9, 2e-9),
        "units": kernel(1e-9, 2e-9),
        "copies": CopyWork(line(0.0, 0.0), 0.0, 0.0),
        "node": WireWork(line(0.0, 1e-9), line(0.0, 1e-9)),
        "across": WireWork(line(0.0, 1e-8), line(0.0, 1e-8)),
        "attend_s": 0.0,
        "shared_s": 0.0,
        "message_s": 0.0,
        "hidden": 1.0,
        "wander": 0.0,
        "reduce_s": 4e-3,
        "reduced_by": 2,
        "update": line(0.0, 1e-9),
        "parameters": 1_000_000,
        "round_s": 0.0,
        "step_s": 0.0,
        "width": width,
        "heads": heads,
    }
    return StepCurves(**(values | changes))  # type: ignore[arg-type]
