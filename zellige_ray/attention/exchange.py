"""Exchange: the four coalesced moves of rows per layer, each one gather, one message per neighbour, one gather.

`start` packs and posts, `finish` waits; what runs in between overlaps, the same way in forward and in backward. Several
may be in flight. Rows that stay on their rank are gathered straight into the end of the wire buffer and never travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.layout import RankLayout
from zellige_ray.attention.pending import Pending
from zellige_ray.attention.tables import Index
from zellige_ray.errors import EngineError

Transport = Literal["p2p", "group", "world"]
transports: tuple[Transport, ...] = ("p2p", "group", "world")


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """One kind of exchange: what is gathered, how many rows go to and come from each peer."""

    pack: Tensor
    send_rows: Mapping[int, int]
    recv_rows: Mapping[int, int]

    @property
    def num_send(self) -> int:
        return sum(self.send_rows.values())

    @property
    def num_recv(self) -> int:
        return sum(self.recv_rows.values())


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    """A wire buffer whose first rows are on their way."""

    wire: Tensor
    pending: Pending[Tensor]


class Exchange:
    """The moves of one layout over one communicator: q, k, v in; o out; do in; dq, dk, dv out."""

    def __init__(self, layout: RankLayout, comm: Comm | None, transport: Transport, device: torch.device) -> None:
        t = layout.tables
        qkv_home, qkv_tile = _qkv_rows(t.q_home, t.kv_home), _qkv_rows(t.q_tile, t.kv_tile)
        self.qkv_in = Move(_tensor(t.home_pack, device), qkv_home, qkv_tile)
        self.o_out = Move(_tensor(t.unit_q_pack, device), t.q_tile, t.q_home)
        self.grad_in = Move(_tensor(t.home_q_pack, device), t.q_home, t.q_tile)
        self.grads_out = Move(_tensor(t.unit_pack, device), qkv_tile, qkv_home)
        self._comm = comm
        self._members = _members(layout, comm, transport)
        self._transport = transport
        if comm is not None and transport == "group":
            comm.admit(layout.components)
        self._key = 0

    def start(self, move: Move, source_RD: Tensor) -> InFlight:
        """Gather the rows of `source_RD`, post them, gather own rows."""
        wire = source_RD.new_empty((move.num_recv + move.pack.numel() - move.num_send, source_RD.shape[1]))
        send = source_RD.index_select(0, move.pack[: move.num_send])
        pending = self._post(move, send, wire[: move.num_recv])
        torch.index_select(source_RD, 0, move.pack[move.num_send :], out=wire[move.num_recv :])
        return InFlight(wire, pending)

    def finish(self, flight: InFlight) -> Tensor:
        """The complete wire buffer."""
        flight.pending.wait()
        return flight.wire

    def _post(self, move: Move, send: Tensor, out: Tensor) -> Pending[Tensor]:
        key = self._key
        self._key += 1
        if len(self._members) < 2:
            return Pending.ready(out)
        if self._comm is None:
            raise EngineError(
                f"ranks {list(self._members)} share sequences in this round; the engine needs a communicator"
            )
        if self._transport == "p2p":
            return self._comm.exchange(send, move.send_rows, move.recv_rows, key, out)
        return self._comm.exchange_in_group(self._members, send, move.send_rows, move.recv_rows, key, out)


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


def _tensor(index: Index, device: torch.device) -> Tensor:
    return torch.from_numpy(index).to(device)
