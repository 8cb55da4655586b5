"""RankLayout: what a round means for one rank: segments, split sizes and integer index tables.

Whole sequences (fillers) stay segments of the packed buffer. Only cut sequences have tables, one entry per (token,
head) row. A message between a home (who owns tokens) and a tile rank (who attends) holds, over all their sequences, all
q rows, then all k rows, then all v rows, each by (sequence, head, token); outputs travel back in the order of the q
rows. Rows of a rank for itself follow after the rows of its peers, in the same order, and never travel.

Legend: T packed local tokens, N heads, D head dim. A *unit* is one head of one sequence on a tile rank, with the
queries it has there and all keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zellige_ray.attention.coverage import check_coverage
from zellige_ray.attention.cuts import CutSequence, components, cut_sequences, divide
from zellige_ray.attention.tables import Tables, compile_tables
from zellige_ray.placement.plan import DEFAULT_EXECUTOR, IntArray, Round


class Piece(NamedTuple):
    """Tokens [start, stop) of a sequence (its index in the round) at rows offset, ... of the packed buffer."""

    sequence: int
    start: int
    stop: int
    offset: int

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class WireRows:
    """Rows of head_dim elements that a rank sends per layer, by exchange."""

    forward_in: int
    forward_out: int
    backward_in: int
    backward_out: int

    @property
    def total(self) -> int:
        return self.forward_in + self.forward_out + self.backward_in + self.backward_out


@dataclass(frozen=True, slots=True, eq=False)
class RankLayout:
    """One rank's part of a round; frozen, made by `compile_layout`.

    pieces: in packed order: fillers of the first overlap part, of the second, then pieces of cut sequences; fillers of
    a part by descending length, so that equal ones share a kernel call; cut sequences too. num_first, num_whole: rows
    of the first part, of both. Pieces that other executors run come last. tables: of the cut sequences with the default
    executor. streamed: the others. components: ranks that must meet in this round, over all ranks, each of more than
    one.
    """

    rank: int
    heads: int
    pieces: tuple[Piece, ...]
    num_tokens: int
    num_first: int
    num_whole: int
    tables: Tables
    streamed: tuple[CutSequence, ...]
    components: tuple[tuple[int, ...], ...]

    @property
    def num_exchanged(self) -> int:
        """Packed rows of cut sequences with the default executor; they follow the whole ones."""
        return self.tables.num_tokens

    @property
    def whole_lengths(self) -> tuple[int, ...]:
        return tuple(p.length for p in self.pieces if p.offset < self.num_whole)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Ranks that this one exchanges rows with."""
        return self.tables.peers

    @property
    def component(self) -> tuple[int, ...]:
        """Ranks of this rank's component; itself alone where it shares no sequence."""
        return next((c for c in self.components if self.rank in c), (self.rank,))

    @property
    def wire_rows(self) -> WireRows:
        """Rows that this rank sends per layer."""
        t = self.tables
        q_home, q_tile = sum(t.q_home.values()), sum(t.q_tile.values())
        kv_home, kv_tile = sum(t.kv_home.values()), sum(t.kv_tile.values())
        return WireRows(q_home + 2 * kv_home, q_tile, q_home, q_tile + 2 * kv_tile)

    def wire_bytes(self, head_dim: int, itemsize: int) -> int:
        """Bytes that this rank sends per layer, forward and backward (recomputation repeats the forward ones)."""
        return self.wire_rows.total * head_dim * itemsize


def compile_layout(round_: Round, rank: int, heads: int) -> RankLayout:
    """Compile one rank's part of a round; the caller caches it by plan hash.

    heads: of the model. Raises PlanError where tokens or attention cells of a sequence are missing, doubled or outside.
    Cost: linear in the rank's (token, head) rows of cut sequences, see benchmarks/engine_layout.py.
    """
    check_coverage(round_, heads)
    division = divide(round_)
    pieces, num_first, num_whole = _whole_pieces(round_, np.flatnonzero(division.owner_S == rank))
    cuts = sorted(cut_sequences(round_, division), key=lambda c: (-c.length, c.sequence))
    mine = tuple(c for c in cuts if rank in c.ranks)
    exchanged = [c for c in mine if c.executor == DEFAULT_EXECUTOR]
    streamed = [c for c in mine if c.executor != DEFAULT_EXECUTOR]
    at = num_whole
    for cut in (*exchanged, *streamed):
        for start, stop in cut.homes.get(rank, ()):
            pieces.append(Piece(cut.sequence, start, stop, at))
            at += stop - start
    return RankLayout(
        rank=rank,
        heads=heads,
        pieces=tuple(pieces),
        num_tokens=at,
        num_first=num_first,
        num_whole=num_whole,
        tables=compile_tables(exchanged, rank, heads),
        streamed=tuple(streamed),
        components=components(cuts),
    )


def _whole_pieces(round_: Round, own_W: IntArray) -> tuple[list[Piece], int, int]:
    """Pieces of this rank's fillers, rows of the first overlap part, rows of both."""
    second = set(round_.second)
    is_second_W = np.array([round_.ids[s] in second for s in own_W.tolist()], dtype=bool)
    lengths_W = round_.tokens_S[own_W]
    order_W = np.lexsort((own_W, -lengths_W, is_second_W))
    stops_W = np.cumsum(lengths_W[order_W])
    pieces = [
        Piece(s, 0, n, stop - n)
        for s, n, stop in zip(own_W[order_W].tolist(), lengths_W[order_W].tolist(), stops_W.tolist(), strict=True)
    ]
    return pieces, int(lengths_W[~is_second_W].sum()), int(lengths_W.sum())
