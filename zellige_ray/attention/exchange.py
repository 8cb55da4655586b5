"""Exchange: the four coalesced moves of rows per layer, one message per neighbour each.

`start` packs and posts, `finish` waits; what runs in between overlaps, the same way in forward and in backward. Several
may be in flight. Rows that stay on their rank are copied straight into the end of the wire buffer and never travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.copying import write_wire
from zellige_ray.attention.layout import RankLayout
from zellige_ray.attention.pending import Pending
from zellige_ray.attention.tables import Copies
from zellige_ray.errors import EngineError

Transport = Literal["p2p", "group", "world"]
transports: tuple[Transport, ...] = ("p2p", "group", "world")


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """One kind of exchange: rectangles of each operand, rows to and from each peer, own rows."""

    copies: tuple[Copies, ...]
    send_rows: Mapping[int, int]
    recv_rows: Mapping[int, int]
    own_rows: int

    @property
    def num_send(self) -> int:
        return sum(self.send_rows.values())

    @property
    def num_recv(self) -> int:
        return sum(self.recv_rows.values())


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    """Rows of peers, on their way, and own rows, there already."""

    away_WD: Tensor
    own_WD: Tensor
    pending: Pending[Tensor]


class Exchange:
    """The moves of one layout over one communicator: q, k, v in; o out; do in; dq, dk, dv out."""

    def __init__(self, layout: RankLayout, comm: Comm | None, transport: Transport) -> None:
        t = layout.tables
        qkv_home, qkv_tile = _qkv_rows(t.q_home, t.kv_home), _qkv_rows(t.q_tile, t.kv_tile)
        qkv_own = t.q_own + 2 * t.kv_own
        self.qkv_in = Move(t.home, qkv_home, qkv_tile, qkv_own)
        self.o_out = Move((t.unit_q,), t.q_tile, t.q_home, t.q_own)
        self.grad_in = Move((t.home_q,), t.q_home, t.q_tile, t.q_own)
        self.grads_out = Move(t.unit, qkv_tile, qkv_home, qkv_own)
        self._comm = comm
        self._members = _members(layout, comm, transport)
        self._transport = transport
        self._key = 0
        if comm is not None and transport == "group":
            comm.admit(layout.components)

    def start(self, move: Move, operands: Sequence[Tensor]) -> InFlight:
        """Pack each operand's rows [R, D], post them, copy own rows."""
        like = operands[0]
        send_WD = like.new_empty((move.num_send, like.shape[-1]))
        wire_WD = like.new_empty((move.num_recv + move.own_rows, like.shape[-1]))
        away_WD, own_WD = wire_WD[: move.num_recv], wire_WD[move.num_recv :]
        for copies, rows_RD in zip(move.copies, operands, strict=True):
            write_wire(copies.away, rows_RD, send_WD)
        pending = self._post(move, send_WD, away_WD)
        for copies, rows_RD in zip(move.copies, operands, strict=True):
            write_wire(copies.own, rows_RD, own_WD)
        return InFlight(away_WD, own_WD, pending)

    def finish(self, flight: InFlight) -> tuple[Tensor, Tensor]:
        """Rows of peers, own rows; complete."""
        flight.pending.wait()
        return flight.away_WD, flight.own_WD

    def _post(self, move: Move, send_WD: Tensor, out_WD: Tensor) -> Pending[Tensor]:
        key = self._key
        self._key += 1
        if len(self._members) < 2:
            return Pending.ready(out_WD)
        if self._comm is None:
            raise EngineError(
                f"ranks {list(self._members)} share sequences in this round; the engine needs a communicator"
            )
        if self._transport == "p2p":
            return self._comm.exchange(send_WD, move.send_rows, move.recv_rows, key, out_WD)
        return self._comm.exchange_in_group(self._members, send_WD, move.send_rows, move.recv_rows, key, out_WD)


def _members(layout: RankLayout, comm: Comm | None, transport: Transport) -> tuple[int, ...]:
    """Who takes part: neighbours, the component, or everybody."""
    if transport not in transports:
        raise EngineError(f"unknown transport {transport!r}, known are {transports} (engine.transport)")
    if comm is not None and layout.rank != comm.rank:
        raise EngineError(f"the layout is rank {layout.rank}'s, the communicator rank {comm.rank}'s")
    if comm is not None and max(layout.component) >= comm.size:
        raise EngineError(f"the plan names rank {max(layout.component)}, the communicator has {comm.size} ranks")
    if transport == "p2p":
        return tuple(sorted({layout.rank, *layout.neighbours}))
    if transport == "group":
        return layout.component
    return tuple(range(comm.size)) if comm is not None and layout.components else (layout.rank,)


def _qkv_rows(q: Mapping[int, int], kv: Mapping[int, int]) -> dict[int, int]:
    return {p: q.get(p, 0) + 2 * kv.get(p, 0) for p in sorted(q.keys() | kv.keys())}
