"""Tables: where the rows of one rank's cut sequences lie, at home, in its units and on the wire, as rectangles.

A rectangle is heads x tokens of one sequence, so the tables have a few entries per sequence and peer, not one per
(token, head), and packing or unpacking one is a single strided copy.

A wire buffer W holds the rows of each peer, ascending, then the rank's rows for itself ("own", which never travel).
Home rows are (token, head) of the local tokens of cut sequences; unit rows are (unit, query) or (unit, key), a unit
being one head of one sequence at its tile rank. Of each pair of ranks, W has all q rows, then all k rows, then all v
rows, each by sequence, head block, head, token; outputs and their gradients travel in the order of the q rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from zellige_ray.attention.cuts import Block, CutSequence, Interval, intersect


class Copy(NamedTuple):
    """Rows of heads x tokens: (i, j) is cell + i * cell_head + j * cell_token here, wire + i * wire_head + j on W."""

    heads: int
    tokens: int
    cell: int
    cell_head: int
    cell_token: int
    wire: int
    wire_head: int


class Copies(NamedTuple):
    """Rows for peers, with places in their part of W, and own rows, with places in the own part."""

    away: tuple[Copy, ...]
    own: tuple[Copy, ...]


class Sum(NamedTuple):
    """Copies of the same home rows' gradient, in ascending tile rank, with the part of W that each lies in."""

    parts: tuple[tuple[Copy, bool], ...]  # (copy, own)


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Split sizes and rectangles.

    num_tokens: local tokens of these sequences. q_home, kv_home: peer -> q rows, kv rows that this rank owns and the
    peer attends with; q_tile, kv_tile: the other way round (a kv row is one k and one v row). q_own, kv_own: rows that
    stay. unit_blocks: (units, queries, keys). home, unit: q, k, v rows <-> W(q, k, v). home_q, unit_q: q rows <-> W(q).
    sums: for k and for v, what adds up to the gradient of every home row.
    """

    num_tokens: int
    peers: tuple[int, ...]
    q_home: dict[int, int]
    kv_home: dict[int, int]
    q_tile: dict[int, int]
    kv_tile: dict[int, int]
    q_own: int
    kv_own: int
    unit_blocks: tuple[tuple[int, int, int], ...]
    home: tuple[Copies, Copies, Copies]
    home_q: Copies
    unit: tuple[Copies, Copies, Copies]
    unit_q: Copies
    sums: tuple[tuple[Sum, ...], tuple[Sum, ...]]

    @property
    def unit_q_rows(self) -> int:
        return sum(units * queries for units, queries, _ in self.unit_blocks)

    @property
    def unit_kv_rows(self) -> int:
        return sum(units * keys for units, _, keys in self.unit_blocks)


class _Rectangle(NamedTuple):
    """A block of heads times spans (first cell, tokens) of one buffer."""

    cut: CutSequence
    block: Block
    cell_head: int
    cell_token: int
    spans: tuple[tuple[int, int], ...]

    @property
    def width(self) -> int:
        return sum(count for _, count in self.spans)

    @property
    def size(self) -> int:
        return self.block.heads * self.width

    def copies(self, at: int, start: int = 0, stop: int | None = None) -> Iterator[Copy]:
        """Copies of heads [start, stop) of the block, whose rows begin at `at` of W, head by head."""
        stop = self.block.heads if stop is None else stop
        column = at + start * self.width
        for cell, count in self.spans:
            first = cell + start * self.cell_head
            yield Copy(stop - start, count, first, self.cell_head, self.cell_token, column, self.width)
            column += count


class _Side:
    """One end of the wire: for each peer and for this rank itself, the q rectangles and the kv rectangles."""

    def __init__(
        self, peers: list[int], rank: int, q: dict[int, list[_Rectangle]], kv: dict[int, list[_Rectangle]]
    ) -> None:
        self.q_rows = {p: sum(x.size for x in q[p]) for p in (*peers, rank)}
        self.kv_rows = {p: sum(x.size for x in kv[p]) for p in (*peers, rank)}
        self.places: dict[tuple[int, int, int], tuple[int, int]] = {}  # (rank, sequence, head) -> k row, v row of W
        parts: dict[str, tuple[list[Copy], list[Copy]]] = {name: ([], []) for name in ("q", "k", "v", "q only")}
        at = at_q = 0
        for p in (*peers, rank):
            own = p == rank
            if own:
                at = at_q = 0
            for x in q[p]:
                parts["q"][own].extend(x.copies(at))
                parts["q only"][own].extend(x.copies(at_q))
                at, at_q = at + x.size, at_q + x.size
            for x in kv[p]:
                parts["k"][own].extend(x.copies(at))
                parts["v"][own].extend(x.copies(at + self.kv_rows[p]))
                self.places[p, x.cut.sequence, x.block.head_start] = (at, at + self.kv_rows[p])
                at += x.size
            at += self.kv_rows[p]
        copies = {name: Copies(tuple(away), tuple(own)) for name, (away, own) in parts.items()}
        self.operands = (copies["q"], copies["k"], copies["v"])
        self.q_only = copies["q only"]


def compile_tables(cuts: list[CutSequence], rank: int, heads: int) -> Tables:
    """Tables of a rank over the cut sequences it takes part in; home rows are numbered in their order."""
    peers = sorted({p for c in cuts for p in _partners(c, rank)})
    order = (*peers, rank)
    places = _Places(cuts, rank, heads)
    kv_home = {p: [places.home(c, b, ((0, c.length),)) for c, b in _blocks(cuts, p) if rank in c.homes] for p in order}
    home = _Side(
        peers,
        rank,
        {p: [x for c, b in _blocks(cuts, p) if (x := places.home(c, b, b.queries)).size] for p in order},
        kv_home,
    )
    unit = _Side(
        peers,
        rank,
        {p: [x for c, b in places.units if (x := places.unit_q(c, b, c.homes.get(p, ()))).size] for p in order},
        {p: [places.unit_kv(c, b, c.homes[p]) for c, b in places.units if p in c.homes] for p in order},
    )
    return Tables(
        num_tokens=places.num_tokens,
        peers=tuple(peers),
        q_home={p: home.q_rows[p] for p in peers if home.q_rows[p]},
        kv_home={p: home.kv_rows[p] for p in peers if home.kv_rows[p]},
        q_tile={p: unit.q_rows[p] for p in peers if unit.q_rows[p]},
        kv_tile={p: unit.kv_rows[p] for p in peers if unit.kv_rows[p]},
        q_own=home.q_rows[rank],
        kv_own=home.kv_rows[rank],
        unit_blocks=tuple((b.heads, b.num_queries, c.length) for c, b in places.units),
        home=home.operands,
        home_q=home.q_only,
        unit=unit.operands,
        unit_q=unit.q_only,
        sums=_sums(kv_home, home, rank),
    )


class _Places:
    """Where the rows of this rank lie: token rows of its homes, first rows of its units."""

    def __init__(self, cuts: list[CutSequence], rank: int, heads: int) -> None:
        self._heads = heads
        self._homes: dict[int, list[tuple[int, int, int]]] = {}  # sequence -> (start, stop, first row)
        self.num_tokens = 0
        for c in cuts:
            for start, stop in c.homes.get(rank, ()):
                self._homes.setdefault(c.sequence, []).append((start, stop, self.num_tokens))
                self.num_tokens += stop - start
        self.units = list(_blocks(cuts, rank))
        self._bases: dict[tuple[int, int], tuple[int, int]] = {}  # (sequence, first head) -> first q row, first kv row
        at_q = at_kv = 0
        for c, b in self.units:
            self._bases[c.sequence, b.head_start] = (at_q, at_kv)
            at_q += b.heads * b.num_queries
            at_kv += b.heads * c.length

    def home(self, cut: CutSequence, block: Block, tokens: tuple[Interval, ...]) -> _Rectangle:
        """Home rows of a block's heads for those of `tokens` that are here."""
        spans = tuple(
            ((row + low - start) * self._heads + block.head_start, high - low)
            for start, stop, row in self._homes.get(cut.sequence, ())
            for low, high in intersect(((start, stop),), tokens)
        )
        return _Rectangle(cut, block, 1, self._heads, spans)

    def unit_q(self, cut: CutSequence, block: Block, tokens: tuple[Interval, ...]) -> _Rectangle:
        """Unit q rows of a block for those of its queries that are among `tokens`, ascending tokens."""
        base, _ = self._bases[cut.sequence, block.head_start]
        spans: list[tuple[int, int, int]] = []
        at = 0
        for start, stop in block.queries:
            spans += [(low, base + at + low - start, high - low) for low, high in intersect(((start, stop),), tokens)]
            at += stop - start
        places = tuple((cell, count) for _, cell, count in sorted(spans))
        return _Rectangle(cut, block, block.num_queries, 1, places)

    def unit_kv(self, cut: CutSequence, block: Block, tokens: tuple[Interval, ...]) -> _Rectangle:
        """Unit k rows of a block for `tokens`."""
        _, base = self._bases[cut.sequence, block.head_start]
        return _Rectangle(cut, block, cut.length, 1, tuple((base + start, stop - start) for start, stop in tokens))


def _sums(kv_home: dict[int, list[_Rectangle]], home: _Side, rank: int) -> tuple[tuple[Sum, ...], tuple[Sum, ...]]:
    """Per range of heads that the same tile ranks hold, and per span of home tokens: their copies, ascending ranks."""
    by_sequence: dict[int, list[tuple[int, _Rectangle]]] = {}
    for p, rectangles in sorted(kv_home.items()):
        for x in rectangles:
            by_sequence.setdefault(x.cut.sequence, []).append((p, x))
    k_sums: list[Sum] = []
    v_sums: list[Sum] = []
    for sequence, members in by_sequence.items():
        edges = sorted({edge for _, x in members for edge in (x.block.head_start, x.block.head_stop)})
        for low, high in zip(edges, edges[1:], strict=False):  # noqa: RUF007
            k_parts: list[list[tuple[Copy, bool]]] = []
            v_parts: list[list[tuple[Copy, bool]]] = []
            for p, x in members:
                if not (x.block.head_start <= low and high <= x.block.head_stop):
                    continue
                at_k, at_v = home.places[p, sequence, x.block.head_start]
                start, stop = low - x.block.head_start, high - x.block.head_start
                for parts, at in ((k_parts, at_k), (v_parts, at_v)):
                    for i, copy in enumerate(x.copies(at, start, stop)):
                        if i == len(parts):
                            parts.append([])
                        parts[i].append((copy, p == rank))
            k_sums += [Sum(tuple(part)) for part in k_parts]
            v_sums += [Sum(tuple(part)) for part in v_parts]
    return tuple(k_sums), tuple(v_sums)


def _blocks(cuts: list[CutSequence], rank: int) -> Iterator[tuple[CutSequence, Block]]:
    return ((c, b) for c in cuts for b in c.blocks.get(rank, ()))


def _partners(cut: CutSequence, rank: int) -> Iterable[int]:
    """Ranks with which this one exchanges rows of a sequence."""
    return {*(cut.blocks if rank in cut.homes else ()), *(cut.homes if rank in cut.blocks else ())} - {rank}
