"""Profile of attention kernels and of packing: segments of all heads and of single heads, rows to and from the wire.

Legend: T rows of a packed buffer, N heads, H head dim, R rows of H.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from zellige_ray.attention.copying import read_wire, write_wire
from zellige_ray.attention.kernels import Kernel
from zellige_ray.attention.layout import compile_layout
from zellige_ray.attention.segments import Segments, pack_segments
from zellige_ray.training.profile_trials import halved_round

CELLS = 1 << 18  # queries x keys x heads of one timed call, at least
MAX_REPEATS = 64


class KernelProbe:
    """One kernel on operands of a head dim, type and device."""

    def __init__(
        self,
        kernel: Kernel,
        heads: int,
        head_dim: int,
        like: torch.Tensor,
        deterministic: bool,
        now: Callable[[], float],
    ) -> None:
        """like: a tensor of the operands' type and device. heads: of the model."""
        self._kernel, self._heads, self._dim = kernel, heads, head_dim
        self._like, self._deterministic, self._now = like, deterministic, now

    def time(self, queries: int, keys: int, whole: bool) -> tuple[float, float, int]:
        """(forward, backward) seconds of one call, and the heads of segments in it.

        whole: rows hold all heads, else one.
        """
        width = self._heads if whole else 1
        heads = min(width, max(1, -(-CELLS // (queries * keys))))
        repeats = min(MAX_REPEATS, max(1, CELLS // (queries * keys * heads)))
        forward_s, backward_s = self._run(pack_segments([(repeats, queries, keys)]), width, heads)
        return forward_s, backward_s, repeats * heads

    def time_calls(self, whole: bool) -> tuple[float, float]:
        """(forward, backward) seconds of a run of one tiny segment, over what its cells need."""
        width = self._heads if whole else 1
        lengths = [(1, 8 + i % 2, 8) for i in range(32)]
        forward_s, backward_s = self._run(pack_segments(lengths), width, width)
        alone = self._run(pack_segments([(32, 8, 8)]), width, width)
        return max(0.0, forward_s - alone[0]) / 31, max(0.0, backward_s - alone[1]) / 31

    def _run(self, segments: Segments, width: int, heads: int) -> tuple[float, float]:
        shape_q, shape_k = (segments.num_q, width, self._dim), (segments.num_k, width, self._dim)
        q, o, grad, dq = (self._like.new_full(shape_q, 0.1)[:, :heads] for _ in range(4))
        k, v, dk, dv = (self._like.new_full(shape_k, 0.1)[:, :heads] for _ in range(4))
        began = self._now()
        lse = self._kernel.forward(q, k, v, segments, o, self._deterministic)
        half = self._now()
        self._kernel.backward(grad, q, k, v, o, lse, segments, (dq, dk, dv), self._deterministic)
        return half - began, self._now() - half


def time_copies(
    lengths: Sequence[int], heads: int, head_dim: int, like: torch.Tensor, now: Callable[[], float]
) -> dict[int, tuple[float, int, int]]:
    """length -> (seconds, bytes, rectangles) of packing a cut sequence at home and unpacking it at its tiles."""
    out: dict[int, tuple[float, int, int]] = {}
    for n in lengths:
        tables = compile_layout(halved_round(n, heads, [(0, 1)]), 0, heads).tables
        home = [like.new_full((tables.num_tokens * heads, head_dim), 0.1) for _ in range(3)]
        unit = [like.new_empty((rows, head_dim)) for rows in (tables.unit_q_rows, *(tables.unit_kv_rows,) * 2)]
        send = like.new_empty((sum(tables.q_home.values()) + 2 * sum(tables.kv_home.values()), head_dim))
        wire = like.new_empty((sum(tables.q_tile.values()) + 2 * sum(tables.kv_tile.values()), head_dim))
        own = like.new_empty((tables.q_own + 2 * tables.kv_own, head_dim))
        began = now()
        for copies, rows in zip(tables.home, home, strict=True):
            write_wire(copies.away, rows, send)
            write_wire(copies.own, rows, own)
        for copies, rows in zip(tables.unit, unit, strict=True):
            read_wire(copies.away, wire, rows)
            read_wire(copies.own, own, rows)
        seconds = now() - began
        rectangles = sum(len(part) for side in (tables.home, tables.unit) for copies in side for part in copies)
        moved = send.shape[0] + wire.shape[0] + 2 * own.shape[0]
        out[n] = (seconds, moved * head_dim * like.element_size(), rectangles)
    return out
