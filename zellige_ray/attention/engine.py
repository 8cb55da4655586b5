"""AttentionEngine: self-attention of all pieces of one rank, whole ones locally, cut ones through the exchange.

One layer is, in this order: post q, k, v of cut tokens; attention of the first fillers; wait; attention of the tiles; post
their outputs; attention of the second fillers; wait. Backward is the mirror image in one autograd node, so that the same
fillers' kernels run while the reverse exchanges are in flight. Every rank calls `attend` for every layer in the same
order, whatever it holds, and runs backward.

Legend: T packed local tokens, N heads, H head dim, R rows of H, L caption tokens of all pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zellige_ray.attention.choice import choose_kernel, choose_transport
from zellige_ray.attention.clock import PhaseClock
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.exchange import Exchange
from zellige_ray.attention.kernels import Kernel
from zellige_ray.attention.layout import RankLayout
from zellige_ray.attention.segments import Segments, pack_segments
from zellige_ray.errors import EngineError


class AttentionEngine:
    """Attention of one round on one rank.

    comm: may be None where the layout exchanges nothing. kernel: a key of `kernels`, or `auto`. transport: `p2p`, `group`,
    `world`, or `auto`. deterministic: refuse kernels whose result depends on timing. clock: where times are added.
    """

    def __init__(
        self,
        layout: RankLayout,
        comm: Comm | None,
        kernel: str = "sdpa",
        transport: str = "p2p",
        deterministic: bool = True,
        clock: PhaseClock | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        device = torch.device(device)
        self.layout = layout
        self.comm = comm
        self.clock = clock or PhaseClock(device)
        self.deterministic = deterministic
        self.kernel_name = kernel
        self.exchange = Exchange(layout, comm, choose_transport(transport), device)
        t, pieces = layout.tables, layout.pieces
        self.first = pack_segments([(1, p.length, p.length) for p in pieces if p.offset < layout.num_first])
        self.second = pack_segments(
            [(1, p.length, p.length) for p in pieces if layout.num_first <= p.offset < layout.num_whole]
        )
        self.units = pack_segments(t.unit_blocks)
        self.home_unpack, self.home_q_unpack = _index(t.home_unpack, device), _index(t.home_q_unpack, device)
        self.unit_unpack, self.unit_q_unpack = _index(t.unit_unpack, device), _index(t.unit_q_unpack, device)
        self.sum_rows = _index(t.sum_rows, device).long()
        self.sums = [(_index(slot, device).long(), _index(place, device)) for slot, place in t.sums]
        self._device = device
        self._local: dict[tuple[tuple[int, int], ...], Segments] = {}
        if layout.streamed:
            names = sorted({c.executor for c in layout.streamed})
            raise EngineError(f"executors {names} are not among those this engine has: exchange")

    def attend(self, q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor) -> Tensor:
        """Each piece's queries attend to all keys of its sequence, wherever those are.

        At most two exchanges here and two in backward. Raises EngineError for operands that are not the layout's, or that
        the kernel can't run; CommError and Regroup from the exchange.
        """
        q_TNH, k_TNH, v_TNH = self._operands(q_TNH, k_TNH, v_TNH)
        expected = (self.layout.num_tokens, self.layout.heads)
        if q_TNH.shape[:2] != expected or k_TNH.shape != q_TNH.shape:
            raise EngineError(
                f"attention got q {tuple(q_TNH.shape)}, k {tuple(k_TNH.shape)}; this rank's plan has {expected[0]} tokens, {expected[1]} heads"
            )
        out: Tensor = _Attend.apply(q_TNH, k_TNH, v_TNH, self, self._kernel(q_TNH))  # type: ignore[no-untyped-call]
        return out

    def cross(self, q_TNH: Tensor, k_LNH: Tensor, v_LNH: Tensor, text_lengths: Sequence[int]) -> Tensor:
        """Each piece's queries attend to their own caption, locally; text_lengths: caption tokens per piece, all positive."""
        pieces = self.layout.pieces
        if len(text_lengths) != len(pieces):
            raise EngineError(f"{len(text_lengths)} captions for {len(pieces)} pieces")
        return self.local(q_TNH, k_LNH, v_LNH, [(p.length, n) for p, n in zip(pieces, text_lengths, strict=True)])

    def local(self, q_QNH: Tensor, k_KNH: Tensor, v_KNH: Tensor, lengths: Sequence[tuple[int, int]]) -> Tensor:
        """Attention that needs nobody else: consecutive segments of (queries, keys)."""
        q_QNH, k_KNH, v_KNH = self._operands(q_QNH, k_KNH, v_KNH)
        key = tuple(lengths)
        if key not in self._local:
            self._local[key] = pack_segments([(1, queries, keys) for queries, keys in key])
        segments = self._local[key]
        if (q_QNH.shape[0], k_KNH.shape[0]) != (segments.num_q, segments.num_k):
            raise EngineError(
                f"attention got {q_QNH.shape[0]} queries and {k_KNH.shape[0]} keys, "
                f"its segments have {segments.num_q} and {segments.num_k}"
            )
        out: Tensor = _Local.apply(q_QNH, k_KNH, v_KNH, segments, self, self._kernel(q_QNH))  # type: ignore[no-untyped-call]
        return out

    def _kernel(self, q_TNH: Tensor) -> Kernel:
        kernel = choose_kernel(self.kernel_name, q_TNH.device, self.deterministic)
        kernel.check(q_TNH.device, q_TNH.dtype, q_TNH.shape[-1])
        return kernel

    def _operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Contiguous operands of one dtype on the engine's device; under autocast, of its dtype."""
        device_type = self._device.type
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        if not q.dtype == k.dtype == v.dtype:
            raise EngineError(f"q, k, v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
        if any(x.device.type != device_type for x in (q, k, v)):
            raise EngineError(f"q, k, v are on {q.device}, {k.device}, {v.device}; this engine is on {self._device}")
        return q.contiguous(), k.contiguous(), v.contiguous()


class _Attend(torch.autograd.Function):
    """The whole of one attention layer, forward and backward, with its exchanges."""

    @staticmethod
    def forward(
        ctx: Any, q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, engine: AttentionEngine, kernel: Kernel
    ) -> Tensor:
        layout, exchange, clock = engine.layout, engine.exchange, engine.clock
        whole, first = layout.num_whole, layout.num_first
        o_TNH = torch.empty_like(q_TNH)
        lse: list[Tensor] = []
        with clock.phase("exchange"):
            flight = exchange.start(exchange.qkv_in, _cut_rows(engine, q_TNH, k_TNH, v_TNH))
        with clock.phase("attention"):
            lse.append(
                kernel.forward(
                    q_TNH[:first], k_TNH[:first], v_TNH[:first], engine.first, o_TNH[:first], engine.deterministic
                )
            )
        with clock.phase("exchange"):
            q_R1H, k_R1H, v_R1H = _units(engine, exchange.finish(flight))
        o_R1H = torch.empty_like(q_R1H)
        with clock.phase("attention"):
            lse_R1 = kernel.forward(q_R1H, k_R1H, v_R1H, engine.units, o_R1H, engine.deterministic)
        with clock.phase("exchange"):
            flight = exchange.start(exchange.o_out, o_R1H.flatten(0, 1))
        with clock.phase("attention"):
            rows = slice(first, whole)
            lse.append(
                kernel.forward(q_TNH[rows], k_TNH[rows], v_TNH[rows], engine.second, o_TNH[rows], engine.deterministic)
            )
        with clock.phase("exchange"):
            _gather(exchange.finish(flight), engine.home_q_unpack, _cut(engine, o_TNH))
        kept = (q_TNH[:whole], k_TNH[:whole], v_TNH[:whole]) if whole else (q_TNH[:0].clone(),) * 3
        ctx.save_for_backward(*kept, o_TNH, *lse, q_R1H, k_R1H, v_R1H, o_R1H, lse_R1)
        ctx.engine, ctx.kernel = engine, kernel
        return o_TNH

    @staticmethod
    def backward(ctx: Any, grad_TNH: Tensor) -> tuple[Tensor | None, ...]:
        engine, kernel = ctx.engine, ctx.kernel
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
            flight = exchange.start(exchange.grad_in, _cut(engine, grad_TNH))
        fillers(second, lse_second, engine.second)
        with clock.phase("exchange"):
            grad_R1H = torch.empty_like(o_R1H)
            _gather(exchange.finish(flight), engine.unit_q_unpack, grad_R1H.flatten(0, 1))
        with clock.phase("attention"):
            sizes = [q_R1H.shape[0], k_R1H.shape[0], v_R1H.shape[0]]
            unit_grads_RH = q_R1H.new_empty(sum(sizes), q_R1H.shape[-1])
            dq, dk, dv = torch.split(unit_grads_RH.unsqueeze(1), sizes)
            kernel.backward(
                grad_R1H, q_R1H, k_R1H, v_R1H, o_R1H, lse_R1, engine.units, (dq, dk, dv), engine.deterministic
            )
        with clock.phase("exchange"):
            flight = exchange.start(exchange.grads_out, unit_grads_RH)
        fillers(first, lse_first, engine.first)
        with clock.phase("exchange"):
            home_RH = _summed(engine, exchange.finish(flight))
            for grad, rows_RH in zip(grads, home_RH.chunk(3) if home_RH.shape[0] else (home_RH,) * 3, strict=True):
                _cut(engine, grad).copy_(rows_RH)
        return *grads, None, None


class _Local(torch.autograd.Function):
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


def _cut(engine: AttentionEngine, x_TNH: Tensor) -> Tensor:
    """Rows (token, head) of the exchanged tokens, a view."""
    layout = engine.layout
    return x_TNH[layout.num_whole : layout.num_whole + layout.num_exchanged].view(-1, x_TNH.shape[-1])


def _cut_rows(engine: AttentionEngine, *operands: Tensor) -> Tensor:
    return torch.cat([_cut(engine, x) for x in operands])


def _units(engine: AttentionEngine, wire_RH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of this rank's units, one head each."""
    q_rows, kv_rows = engine.layout.tables.unit_q_rows, engine.layout.tables.unit_kv_rows
    q, k, v = (
        wire_RH.index_select(0, index).unsqueeze(1)
        for index in torch.split(engine.unit_unpack, [q_rows, kv_rows, kv_rows])
    )
    return q, k, v


def _gather(wire_RH: Tensor, index: Tensor, out_RH: Tensor) -> None:
    torch.index_select(wire_RH, 0, index, out=out_RH)


def _summed(engine: AttentionEngine, wire_RH: Tensor) -> Tensor:
    """Home rows (dq | dk | dv): the first copy, plus further ones in ascending tile rank, in float32 or wider."""
    rows_RH = wire_RH.index_select(0, engine.home_unpack)
    if engine.sums:
        wide = torch.float64 if wire_RH.dtype == torch.float64 else torch.float32
        total_RH = rows_RH.index_select(0, engine.sum_rows).to(wide)
        for slots, places in engine.sums:  # a row is named once per copy: an indexed copy, never a scatter-add
            total_RH.index_copy_(0, slots, total_RH.index_select(0, slots) + wire_RH.index_select(0, places).to(wide))
        rows_RH.index_copy_(0, engine.sum_rows, total_RH.to(rows_RH.dtype))
    return rows_RH


def _index(table: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(table).to(device)
