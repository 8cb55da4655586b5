"""One attention layer, forward and backward, with its exchanges.

Forward is, in this order: post q, k, v of cut tokens; attention of the first fillers; wait; attention of the tiles;
post their outputs; attention of the second fillers; wait. Backward is the mirror image in one autograd node, so that
the same fillers' kernels run while the reverse exchanges are in flight.

Legend: T packed local tokens, N heads, H head dim, R rows of H.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zellige_ray.attention.copying import read_sums, read_wire
from zellige_ray.attention.kernels import Kernel
from zellige_ray.attention.segments import Segments
from zellige_ray.attention.tables import Copies

if TYPE_CHECKING:
    from zellige_ray.attention.engine import AttentionEngine


class Memo:
    """What one attention layer computed, kept for its recomputation: outputs, and operands and outputs of its tiles."""

    __slots__ = ("result",)

    def __init__(self) -> None:
        self.result: tuple[Tensor, ...] | None = None


def _forward(
    q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, engine: AttentionEngine, kernel: Kernel
) -> tuple[Tensor, ...]:
    """Output of all tokens; log-sum-exp of first and second fillers; q, k, v, output and log-sum-exp of the units."""
    layout, exchange, clock = engine.layout, engine.exchange, engine.clock
    whole, first = layout.num_whole, layout.num_first
    o_TNH = torch.empty_like(q_TNH)
    lse: list[Tensor] = []
    with clock.phase("exchange"):
        flight = exchange.start(exchange.qkv_in, [_cut(engine, x) for x in (q_TNH, k_TNH, v_TNH)])
    with clock.phase("attention"):
        lse.append(
            kernel.forward(
                q_TNH[:first], k_TNH[:first], v_TNH[:first], engine.first, o_TNH[:first], engine.deterministic
            )
        )
    with clock.phase("exchange"):
        q_R1H, k_R1H, v_R1H = _units(engine, exchange.finish(flight), q_TNH)
        del flight  # and its buffers: the tiles' kernel is where a rank holds most
    o_R1H = torch.empty_like(q_R1H)
    with clock.phase("attention"):
        lse_R1 = kernel.forward(q_R1H, k_R1H, v_R1H, engine.units, o_R1H, engine.deterministic)
    with clock.phase("exchange"):
        flight = exchange.start(exchange.o_out, [o_R1H.flatten(0, 1)])
    with clock.phase("attention"):
        rows = slice(first, whole)
        lse.append(
            kernel.forward(q_TNH[rows], k_TNH[rows], v_TNH[rows], engine.second, o_TNH[rows], engine.deterministic)
        )
    with clock.phase("exchange"):
        away_WH, own_WH = exchange.finish(flight)
        _read(layout.tables.home_q, away_WH, own_WH, _cut(engine, o_TNH))
    return o_TNH, *lse, q_R1H, k_R1H, v_R1H, o_R1H, lse_R1


class AttendLayer(torch.autograd.Function):
    """The whole of one attention layer, forward and backward, with its exchanges."""

    @staticmethod
    def forward(
        ctx: Any,
        q_TNH: Tensor,
        k_TNH: Tensor,
        v_TNH: Tensor,
        engine: AttentionEngine,
        kernel: Kernel,
        memo: Memo | None,
    ) -> Tensor:
        result = memo.result if memo is not None else None
        if result is None:
            result = _forward(q_TNH, k_TNH, v_TNH, engine, kernel)
            if memo is not None:
                memo.result = tuple(x.detach() for x in result)
        ctx.save_for_backward(*(_kept(x, engine.layout.num_whole) for x in (q_TNH, k_TNH, v_TNH)), *result)
        ctx.engine, ctx.kernel = engine, kernel
        return result[0]

    @staticmethod
    def backward(ctx: Any, grad_TNH: Tensor) -> tuple[Tensor | None, ...]:
        engine, kernel = ctx.engine, ctx.kernel
        engine.leave_if_cancelled()
        q, k, v, o_TNH, lse_first, lse_second, q_R1H, k_R1H, v_R1H, o_R1H, lse_R1 = ctx.saved_tensors
        layout, exchange, clock = engine.layout, engine.exchange, engine.clock
        first, second = slice(0, layout.num_first), slice(layout.num_first, layout.num_whole)
        grad_TNH = grad_TNH.contiguous()
        grads = tuple(torch.empty_like(grad_TNH) for _ in range(3))

        def fillers(rows: slice, lse: Tensor, segments: Segments) -> None:
            with clock.phase("attention"):
                outs = (grads[0][rows], grads[1][rows], grads[2][rows])
                kernel.backward(
                    grad_TNH[rows], q[rows], k[rows], v[rows], o_TNH[rows], lse, segments, outs, engine.deterministic
                )

        with clock.phase("exchange"):
            flight = exchange.start(exchange.grad_in, [_cut(engine, grad_TNH)])
        fillers(second, lse_second, engine.second)
        with clock.phase("exchange"):
            away_WH, own_WH = exchange.finish(flight)
            grad_R1H = torch.empty_like(o_R1H)
            _read(layout.tables.unit_q, away_WH, own_WH, grad_R1H.flatten(0, 1))
            del flight, away_WH, own_WH
        with clock.phase("attention"):
            outs = (torch.empty_like(q_R1H), torch.empty_like(k_R1H), torch.empty_like(v_R1H))
            kernel.backward(grad_R1H, q_R1H, k_R1H, v_R1H, o_R1H, lse_R1, engine.units, outs, engine.deterministic)
            del grad_R1H
        with clock.phase("exchange"):
            flight = exchange.start(exchange.grads_out, [x.flatten(0, 1) for x in outs])
            del outs
        fillers(first, lse_first, engine.first)
        with clock.phase("exchange"):
            away_WH, own_WH = exchange.finish(flight)
            dq, dk, dv = (_cut(engine, x) for x in grads)
            _read(layout.tables.home[0], away_WH, own_WH, dq)
            for sums, rows_RH in zip(layout.tables.sums, (dk, dv), strict=True):
                read_sums(sums, away_WH, own_WH, rows_RH)
        return *grads, None, None, None


class LocalLayer(torch.autograd.Function):
    """Attention that needs nobody else."""

    @staticmethod
    def forward(
        ctx: Any,
        q_QNH: Tensor,
        k_KNH: Tensor,
        v_KNH: Tensor,
        segments: Segments,
        engine: AttentionEngine,
        kernel: Kernel,
    ) -> Tensor:
        o_QNH = torch.empty_like(q_QNH)
        with engine.clock.phase("attention"):
            lse_QN = kernel.forward(q_QNH, k_KNH, v_KNH, segments, o_QNH, engine.deterministic)
        ctx.save_for_backward(q_QNH, k_KNH, v_KNH, o_QNH, lse_QN)
        ctx.segments, ctx.engine, ctx.kernel = segments, engine, kernel
        return o_QNH

    @staticmethod
    def backward(ctx: Any, grad_QNH: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, o, lse = ctx.saved_tensors
        outs = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
        with ctx.engine.clock.phase("attention"):
            ctx.kernel.backward(grad_QNH.contiguous(), q, k, v, o, lse, ctx.segments, outs, ctx.engine.deterministic)
        return *outs, None, None, None


def _kept(x_TNH: Tensor, whole: int) -> Tensor:
    """The rows of whole sequences; a copy where there are others, so that those need not live until backward."""
    return x_TNH if whole == x_TNH.shape[0] else x_TNH[:whole].clone()


def _cut(engine: AttentionEngine, x_TNH: Tensor) -> Tensor:
    """Rows (token, head) of the exchanged tokens, a view."""
    layout = engine.layout
    return x_TNH[layout.num_whole : layout.num_whole + layout.num_exchanged].view(-1, x_TNH.shape[-1])


def _units(engine: AttentionEngine, wire: tuple[Tensor, Tensor], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of this rank's units, one head each."""
    tables = engine.layout.tables
    H = like.shape[-1]
    q, k, v = (like.new_empty(n, 1, H) for n in (tables.unit_q_rows, tables.unit_kv_rows, tables.unit_kv_rows))
    for copies, out_R1H in zip(tables.unit, (q, k, v), strict=True):
        _read(copies, *wire, out_R1H.flatten(0, 1))
    return q, k, v


def _read(copies: Copies, away_WH: Tensor, own_WH: Tensor, out_RH: Tensor) -> None:
    read_wire(copies.away, away_WH, out_RH)
    read_wire(copies.own, own_WH, out_RH)
