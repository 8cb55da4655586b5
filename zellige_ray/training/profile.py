"""A short profile: the rates of the model's own blocks on this device, and of the wire to a neighbour.

Rates are sustained figures of the planner's cost formula (FLOPs by formula / measured seconds), so that the formula
gives the measured time back. Minimum of a few repeats: the machine's own noise only ever adds.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.layout import compile_layout
from zellige_ray.config import RunConfig
from zellige_ray.models.adapter import Packed
from zellige_ray.models.specs import ModelSpec
from zellige_ray.placement import ModelPreset
from zellige_ray.placement.plan import Round
from zellige_ray.training.runner import Runner

GRID = (2, 24, 32)  # frames, height, width in tokens: long enough for attention to show
REPEATS = 3
SMALL_BYTES, LARGE_BYTES = 4 << 10, 4 << 20


def compute(runner: Runner, spec: ModelSpec, config: RunConfig) -> tuple[float, float]:
    """(linear, attention) FLOP/s of forward and backward of one whole sequence through the model."""
    preset = spec.preset(config.model, dtype_bytes=4)
    n = GRID[0] * GRID[1] * GRID[2]
    whole = Round(
        ids=("profile",),
        tokens_S=np.array([n]),
        text_tokens_S=np.array([0]),
        shards_K4=np.array([[0, 0, 0, n]]),
        tiles_M6=np.array([[0, 0, 0, config.model.heads, 0, n]]),
    )
    engine = runner.attention(compile_layout(whole, 0, config.model.heads), None)
    packed = _packed(runner, spec, n)
    best_linear = best_attention = float("inf")
    for _ in range(REPEATS + 1):  # the first one warms up
        runner.state.layout.zero()
        engine.clock.reset()
        start = _now(runner)
        runner.predict(packed, engine).square().mean().backward()  # type: ignore[no-untyped-call]
        seconds = _now(runner) - start
        attention_s = engine.clock.read().attention_s
        best_attention = min(best_attention, attention_s)
        best_linear = min(best_linear, seconds - attention_s)
    runner.state.layout.zero()
    linear, attention = flops(preset, n)
    return linear / max(best_linear, 1e-9), attention / max(best_attention, 1e-9)


def flops(preset: ModelPreset, n: int) -> tuple[float, float]:
    """(linear, attention) FLOPs of a sequence of n tokens without text: forward, recompute, backward, all layers."""
    passes = 4 if preset.checkpointing == "full" else 3
    linear = (8 + 4 * preset.mlp_ratio) * preset.hidden**2 * n
    attention = 4 * preset.hidden * n * n
    return linear * passes * preset.layers, attention * passes * preset.layers


def wire(comm: Comm | None, device: torch.device) -> tuple[float, float]:
    """(bytes/s, seconds per message) of one direction, every rank sending to the next one at once; zeros when alone."""
    if comm is None or comm.size == 1:
        return 0.0, 0.0
    small = min(_ring(comm, device, SMALL_BYTES, i) for i in range(REPEATS + 1))
    large = min(_ring(comm, device, LARGE_BYTES, REPEATS + 1 + i) for i in range(REPEATS))
    return (LARGE_BYTES - SMALL_BYTES) / max(large - small, 1e-9), small


def _ring(comm: Comm, device: torch.device, num_bytes: int, key: int) -> float:
    rows = num_bytes // 256
    send_ND = torch.zeros((rows, 64), dtype=torch.float32, device=device)
    comm.barrier()
    start = time.perf_counter()
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.exchange(send_ND, {after: rows}, {before: rows}, key).wait()
    return time.perf_counter() - start


def _packed(runner: Runner, spec: ModelSpec, n: int) -> Packed:
    loader = runner.loader
    shape = (spec.latent_channels, GRID[0] * spec.patch[0], GRID[1] * spec.patch[1], GRID[2] * spec.patch[2])
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn((n, spec.latent_channels, *spec.patch), generator=generator)
    return Packed(
        tokens_TCphw=tokens.to(loader.dtype).to(loader.device),
        positions_T3=loader.adapter.positions(shape, 0, n).to(loader.device),
        row_T=torch.zeros(n, dtype=torch.int64, device=loader.device),
        timestep_R=torch.full((1,), 0.5, dtype=torch.float32, device=loader.device),
        text_LD=torch.empty((0, loader.text_dim), dtype=loader.dtype, device=loader.device),
        piece_lengths=(n,),
        text_lengths=(0,),
    )


def _now(runner: Runner) -> float:
    if runner.loader.device.type == "cuda":
        torch.cuda.synchronize(runner.loader.device)
    return time.perf_counter()
