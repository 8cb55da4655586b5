"""Trials: a packed Wan against the same sequences one by one through plain diffusers: speed and peak memory on this
machine.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.attention import AttentionEngine, compile_layout
from zellige_ray.attention.tilings import whole_round
from zellige_ray.config import ModelConfig
from zellige_ray.models.adapter import Packed
from zellige_ray.models.registry import get_adapter
from zellige_ray.models.specs import get_spec

TEXT_DIM, HEADS, HEAD_DIM, LAYERS = 64, 8, 64, 2
SHORT = (
    (1, 4, 8),
    (1, 8, 8),
    (1, 8, 12),
    (2, 8, 8),
    (1, 16, 16),
    (1, 12, 20),
    (4, 8, 8),
    (1, 16, 24),
    (1, 22, 22),
    (2, 16, 16),
)
MIXED = (
    (6, 25, 40),
    (1, 30, 50),
    (1, 40, 35),
    (4, 16, 16),
    (1, 16, 16),
    (1, 16, 16),
    (1, 16, 16),
    (1, 16, 16),
)  # 10948 tokens
CAPTIONS = (16, 40, 7, 64, 30, 12, 5, 50, 20, 33)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Latents, caption, timestep in [0, 1]."""

    latents_CFHW: Tensor
    text_LD: Tensor
    time: float


def make_samples(grids: Sequence[tuple[int, int, int]], seed: int = 0) -> list[Sample]:
    """Random samples of these token grids, for Wan."""
    generator = torch.Generator().manual_seed(seed)
    spec = get_spec("wan")
    return [
        Sample(
            torch.randn(spec.latent_channels, f, 2 * h, 2 * w, generator=generator),
            torch.randn(CAPTIONS[i % len(CAPTIONS)], TEXT_DIM, generator=generator),
            float(torch.rand((), generator=generator)),
        )
        for i, (f, h, w) in enumerate(grids)
    ]


class Lab:
    """A plain Wan, the same one bound, and a batch on one rank."""

    def __init__(self, grids: Sequence[tuple[int, int, int]]) -> None:
        adapter = get_adapter("wan")
        config = ModelConfig(name="wan", layers=LAYERS, heads=HEADS, head_dim=HEAD_DIM, mlp_ratio=4.0)
        self.samples = make_samples(grids)
        self.plain: Any = adapter.build(config, TEXT_DIM, 0, torch.float32, "cpu")
        bound_module = copy.deepcopy(self.plain)
        self.bound = adapter.bind(bound_module)
        lengths = [f * h * w for f, h, w in grids]
        layout = compile_layout(whole_round(lengths, [0] * len(lengths), HEADS), 0, HEADS)
        pieces = [(self.samples[p.sequence], p) for p in layout.pieces]
        self.engine = AttentionEngine(layout, None)
        self.packed = Packed(
            tokens_TCphw=torch.cat([adapter.tokens(s.latents_CFHW, p.start, p.stop) for s, p in pieces]),
            positions_T3=torch.cat([adapter.positions(_shape(s), p.start, p.stop) for s, p in pieces]),
            row_T=torch.cat([torch.full((p.length,), i) for i, (_, p) in enumerate(pieces)]),
            timestep_R=torch.tensor([s.time for s, _ in pieces]),
            text_LD=torch.cat([s.text_LD for s, _ in pieces]),
            piece_lengths=tuple(p.length for _, p in pieces),
            text_lengths=tuple(s.text_LD.shape[0] for s, _ in pieces),
        )
        self.num_tokens = sum(lengths)
        _touch_gradients(self.plain)
        _touch_gradients(bound_module)

    def run_serial(self) -> None:
        """Forward and backward, one sequence after the other, gradients accumulated."""
        for s in self.samples:
            out = self.plain(s.latents_CFHW[None], torch.tensor([s.time * 1000]), s.text_LD[None], return_dict=False)[0]
            out.square().sum().backward()

    def run_packed(self) -> None:
        """Forward and backward of all at once."""
        loss = self.bound(self.packed, self.engine).square().sum()
        torch.autograd.backward(loss)


def packed_over_serial(grids: Sequence[tuple[int, int, int]], repeats: int) -> tuple[float, float]:
    """Best serial seconds over best packed seconds of interleaved repeats after a warm-up; and the ratios' spread (max
    - min).
    """
    lab = Lab(grids)
    times = [(_seconds(lab.run_serial), _seconds(lab.run_packed)) for _ in range(repeats + 1)][1:]
    ratios = [serial / packed for serial, packed in times]
    return min(s for s, _ in times) / min(p for _, p in times), max(ratios) - min(ratios)


def memory_over_plain(peak_bytes: Callable[[Callable[[], None]], int], sequences: int = 6) -> float:
    """Peak bytes of activations, forward and backward: packed whole sequences over one plain sequence of as many
    tokens. peak_bytes: most bytes alive at once while its argument runs.
    """
    plain, packed = Lab([(sequences, 16, 16)]), Lab([(1, 16, 16)] * sequences)
    return peak_bytes(packed.run_packed) / peak_bytes(plain.run_serial)


def _touch_gradients(module: nn.Module) -> None:
    for p in module.parameters():
        p.grad = torch.zeros_like(p)


def _seconds(run: Callable[[], None]) -> float:
    """On one thread CPU seconds, which other work on the machine disturbs less; on several, wall seconds."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    run()
    return clock() - began


def _shape(sample: Sample) -> tuple[int, int, int, int]:
    C, F, H, W = sample.latents_CFHW.shape
    return C, F, H, W
