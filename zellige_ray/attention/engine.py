"""AttentionEngine: self-attention of all pieces of one rank, whole ones locally, cut ones through the exchange.

Every rank calls `attend` for every layer in the same order, whatever it holds, and runs backward. What a layer does is
in `layer`.

Legend: T packed local tokens, N heads, H head dim, R rows of H, L caption tokens of all pieces.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from zellige_ray.attention.choice import choose_kernel, choose_transport
from zellige_ray.attention.clock import PhaseClock
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.exchange import Exchange
from zellige_ray.attention.executors import Executor, Streamed, get_executor
from zellige_ray.attention.kernels import Kernel
from zellige_ray.attention.layer import AttendLayer, LocalLayer, Memo
from zellige_ray.attention.layout import RankLayout
from zellige_ray.attention.segments import Segments, pack_segments
from zellige_ray.errors import EngineError


class AttentionEngine:
    """Attention of one round on one rank.

    comm: may be None where the layout exchanges nothing. kernel: a key of `kernels`, or `auto`. transport: `p2p`,
    `group`, `world`, or `auto`. deterministic: refuse kernels whose result depends on timing. clock: where times are
    added.
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
        self.exchange = Exchange(layout, comm, choose_transport(transport))
        t, pieces = layout.tables, layout.pieces
        self.first = pack_segments([(1, p.length, p.length) for p in pieces if p.offset < layout.num_first])
        self.second = pack_segments(
            [(1, p.length, p.length) for p in pieces if layout.num_first <= p.offset < layout.num_whole]
        )
        self.units = pack_segments(t.unit_blocks)
        self._device = device
        self._local: dict[tuple[tuple[int, int], ...], Segments] = {}
        self._streamed = _streamed(layout)
        if self._streamed and comm is None:
            names = sorted({c.executor for c in layout.streamed})
            raise EngineError(f"sequences of this round run by {names} need a communicator")

    def attend(self, q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, memo: Memo | None = None) -> Tensor:
        """Each piece's queries attend to all keys of its sequence, wherever those are.

        At most two exchanges here and two in backward. memo: keeps the result for a recomputation, or brings it back;
        then nothing is exchanged. Raises EngineError for operands that are not the layout's, or that the kernel can't
        run; CommError and Regroup from the exchange, and Regroup at once in a cancelled epoch, exchange or not.
        """
        self.leave_if_cancelled()
        q_TNH, k_TNH, v_TNH = self._operands(q_TNH, k_TNH, v_TNH)
        expected = (self.layout.num_tokens, self.layout.heads)
        if q_TNH.shape[:2] != expected or k_TNH.shape != q_TNH.shape or v_TNH.shape != q_TNH.shape:
            raise EngineError(
                f"attention got q {tuple(q_TNH.shape)}, k {tuple(k_TNH.shape)}, v {tuple(v_TNH.shape)}; "
                f"this rank's plan has {expected[0]} tokens, {expected[1]} heads"
            )
        kernel = self._kernel(q_TNH)
        if not self._streamed:
            out: Tensor = AttendLayer.apply(q_TNH, k_TNH, v_TNH, self, kernel, memo)  # type: ignore[no-untyped-call]
            return out
        rows = slice(0, self.layout.num_whole + self.layout.num_exchanged)
        parts: list[Tensor] = [
            AttendLayer.apply(q_TNH[rows], k_TNH[rows], v_TNH[rows], self, kernel, memo)  # type: ignore[no-untyped-call]
        ]
        for part, executor in self._streamed:
            rows = slice(part.start, part.stop)
            assert self.comm is not None
            parts.append(executor.attend(q_TNH[rows], k_TNH[rows], v_TNH[rows], part, self.comm, kernel))
        return torch.cat(parts)

    def leave_if_cancelled(self) -> None:
        """Raise Regroup in a cancelled epoch; every layer asks, forward and backward."""
        if self.comm is not None:
            self.comm.check()

    def cross(self, q_TNH: Tensor, k_LNH: Tensor, v_LNH: Tensor, text_lengths: Sequence[int]) -> Tensor:
        """Each piece's queries attend to their caption, locally; text_lengths: tokens per caption, all positive."""
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
        out: Tensor = LocalLayer.apply(q_QNH, k_KNH, v_KNH, segments, self, self._kernel(q_QNH))  # type: ignore[no-untyped-call]
        return out

    def _kernel(self, q_TNH: Tensor) -> Kernel:
        kernel = choose_kernel(self.kernel_name, q_TNH.device, q_TNH.dtype)
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


def _streamed(layout: RankLayout) -> list[tuple[Streamed, Executor]]:
    """This rank's parts of sequences that other executors run, in the order of the round, which all ranks share."""
    out: list[tuple[Streamed, Executor]] = []
    at = layout.num_whole + layout.num_exchanged
    for cut in layout.streamed:
        executor = get_executor(cut.executor)
        executor.check(cut, layout.heads)
        rows = sum(stop - start for start, stop in cut.homes.get(layout.rank, ()))
        keys = itertools.count((cut.sequence + 1) << 20)  # the engine's own keys stay below
        out.append((Streamed(cut, layout.rank, layout.heads, at, at + rows, keys.__next__), executor))
        at += rows
    return out
