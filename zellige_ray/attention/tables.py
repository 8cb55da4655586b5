"""Tables: the index tables of one rank's cut sequences, filled rectangle by rectangle (heads x tokens).

Every table is the index of one gather: packing and unpacking are single gathers, and their inverses are what backward
needs. W is a wire buffer: the rows of each peer, ascending, then the rank's rows for itself. Home rows are (token,
head) of the local tokens of cut sequences; unit rows are (unit, query) or (unit, key), a unit being one head of one
sequence at its tile rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from zellige_ray.attention.cuts import Block, CutSequence, Interval, intersect

Index = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Split sizes and gather indices.

    num_tokens: local tokens of these sequences. q_home, kv_home: peer -> q rows, kv rows that this rank owns and the
    peer attends with; q_tile, kv_tile: the other way round (a kv row is one k and one v row). unit_blocks: (units,
    queries, keys).
    home_pack: W(q, k, v) <- home rows (q | k | v)          unit_unpack: unit rows (q | k | v) <- W(q, k, v)
    home_q_pack: W(q) <- home q rows                        unit_q_unpack: unit q rows <- W(q)
    unit_pack: W(dq, dk, dv) <- unit rows (q | k | v)       home_unpack: home rows (q | k | v) <- W, first copy of each
    unit_q_pack: W(o) <- unit q rows                        home_q_unpack: home q rows <- W(o)
    sum_rows: home rows whose gradient comes in several copies. sums: per further copy, in ascending tile rank:
    (places in sum_rows, places in W).
    """

    num_tokens: int
    peers: tuple[int, ...]
    q_home: dict[int, int]
    kv_home: dict[int, int]
    q_tile: dict[int, int]
    kv_tile: dict[int, int]
    unit_blocks: tuple[tuple[int, int, int], ...]
    home_pack: Index
    home_q_pack: Index
    home_unpack: Index
    home_q_unpack: Index
    unit_pack: Index
    unit_q_pack: Index
    unit_unpack: Index
    unit_q_unpack: Index
    sum_rows: Index
    sums: tuple[tuple[Index, Index], ...]

    @property
    def unit_q_rows(self) -> int:
        return sum(units * queries for units, queries, _ in self.unit_blocks)

    @property
    def unit_kv_rows(self) -> int:
        return sum(units * keys for units, _, keys in self.unit_blocks)

    @property
    def is_empty(self) -> bool:
        """Neither a cut token nor a tile here: this rank takes part in no exchange of this round."""
        return self.num_tokens == 0 and not self.unit_blocks


class _Rectangle(NamedTuple):
    """Heads times spans of tokens; (head i, token j of a span) is cell base + i * head_stride + j * token_stride."""

    heads: int
    head_stride: int
    token_stride: int
    spans: tuple[tuple[int, int], ...]  # (base, tokens)

    @property
    def width(self) -> int:
        return sum(count for _, count in self.spans)

    @property
    def size(self) -> int:
        return self.heads * self.width

    def part(self, start: int, stop: int) -> _Rectangle:
        """The rectangle of heads [start, stop) of these."""
        spans = tuple((base + start * self.head_stride, count) for base, count in self.spans)
        return self._replace(heads=stop - start, spans=spans)


class _Section(NamedTuple):
    """A rectangle's rows for one tile rank and their place in W."""

    tile_rank: int
    cut: CutSequence
    block: Block
    rectangle: _Rectangle
    at: int
    v_shift: int  # from a k row of W to its v row


def compile_tables(cuts: list[CutSequence], rank: int, heads: int) -> Tables:
    """Tables of a rank over the cut sequences it takes part in; home rows are numbered in their order."""
    peers = sorted({p for c in cuts for p in _partners(c, rank)})
    order = [*peers, rank]
    places = _Places(cuts, rank, heads)
    cells = places.num_tokens * heads
    q_out = {
        p: [x for c in cuts for b in c.blocks.get(p, ()) if (x := places.home(c, b, b.queries)).size] for p in order
    }
    kv_out = {
        p: [(c, b, places.home(c, b, ((0, c.length),))) for c in cuts for b in c.blocks.get(p, ()) if rank in c.homes]
        for p in order
    }
    q_in = {p: [x for c, b in places.units if (x := places.unit_q(c, b, c.homes.get(p, ()))).size] for p in order}
    kv_in = {p: [places.unit_kv(c, b, c.homes[p]) for c, b in places.units if p in c.homes] for p in order}
    num_q_out, num_q_in = _sizes(q_out), _sizes(q_in)
    num_kv_out, num_kv_in = {p: sum(x.size for _, _, x in kv_out[p]) for p in order}, _sizes(kv_in)

    home_pack, home_unpack = _empty(sum(num_q_out.values()) + 2 * sum(num_kv_out.values())), _empty(3 * cells)
    home_q_pack, home_q_unpack = _empty(sum(num_q_out.values())), _empty(cells)
    sections: list[_Section] = []
    at = at_q = 0
    for p in order:
        for x in q_out[p]:
            _fill_pack(home_pack, at, x, 0)
            _fill_unpack(home_unpack, at, x, 0)
            _fill_unpack(home_q_unpack, at_q, x, 0)
            home_q_pack[at_q : at_q + x.size] = home_pack[at : at + x.size]
            at, at_q = at + x.size, at_q + x.size
        for c, b, x in kv_out[p]:
            _fill_pack(home_pack, at, x, cells)
            np.add(home_pack[at : at + x.size], cells, out=home_pack[at + num_kv_out[p] : at + num_kv_out[p] + x.size])
            sections.append(_Section(p, c, b, x, at, num_kv_out[p]))
            at += x.size
        at += num_kv_out[p]
    sum_rows, sums = _gradient_sums(sections, home_unpack, cells, heads)

    q_rows, kv_rows = places.num_unit_q, places.num_unit_kv
    unit_pack, unit_unpack = _empty(q_rows + 2 * kv_rows), _empty(q_rows + 2 * kv_rows)
    unit_q_pack, unit_q_unpack = _empty(q_rows), _empty(q_rows)
    at = at_q = 0
    for p in order:
        for x in q_in[p]:
            _fill_pack(unit_pack, at, x, 0)
            _fill_unpack(unit_unpack, at, x, 0)
            _fill_unpack(unit_q_unpack, at_q, x, 0)
            unit_q_pack[at_q : at_q + x.size] = unit_pack[at : at + x.size]
            at, at_q = at + x.size, at_q + x.size
        for x in kv_in[p]:
            at_v = at + num_kv_in[p]
            _fill_pack(unit_pack, at, x, q_rows)
            np.add(unit_pack[at : at + x.size], kv_rows, out=unit_pack[at_v : at_v + x.size])
            _fill_unpack(unit_unpack, at, x, q_rows)
            _fill_unpack(unit_unpack, at_v, x, q_rows + kv_rows)
            at += x.size
        at += num_kv_in[p]
    return Tables(
        num_tokens=places.num_tokens,
        peers=tuple(peers),
        q_home={p: num_q_out[p] for p in peers if num_q_out[p]},
        kv_home={p: num_kv_out[p] for p in peers if num_kv_out[p]},
        q_tile={p: num_q_in[p] for p in peers if num_q_in[p]},
        kv_tile={p: num_kv_in[p] for p in peers if num_kv_in[p]},
        unit_blocks=tuple((b.heads, b.num_queries, c.length) for c, b in places.units),
        home_pack=home_pack,
        home_q_pack=home_q_pack,
        home_unpack=home_unpack,
        home_q_unpack=home_q_unpack,
        unit_pack=unit_pack,
        unit_q_pack=unit_q_pack,
        unit_unpack=unit_unpack,
        unit_q_unpack=unit_q_unpack,
        sum_rows=sum_rows,
        sums=sums,
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
        self.units = [(c, b) for c in cuts for b in c.blocks.get(rank, ())]
        self._bases: dict[tuple[int, int], tuple[int, int]] = {}  # (sequence, first head) -> first q row, first kv row
        self.num_unit_q = self.num_unit_kv = 0
        for c, b in self.units:
            self._bases[c.sequence, b.head_start] = (self.num_unit_q, self.num_unit_kv)
            self.num_unit_q += b.heads * b.num_queries
            self.num_unit_kv += b.heads * c.length

    def home(self, cut: CutSequence, block: Block, tokens: tuple[Interval, ...]) -> _Rectangle:
        """Home rows of a block's heads for those of `tokens` that are here."""
        spans = tuple(
            ((row + low - start) * self._heads + block.head_start, high - low)
            for start, stop, row in self._homes.get(cut.sequence, ())
            for low, high in intersect(((start, stop),), tokens)
        )
        return _Rectangle(block.heads, 1, self._heads, spans)

    def unit_q(self, cut: CutSequence, block: Block, tokens: tuple[Interval, ...]) -> _Rectangle:
        """Unit q rows of a block for those of its queries that are among `tokens`, ascending tokens."""
        base, _ = self._bases[cut.sequence, block.head_start]
        spans: list[tuple[int, int, int]] = []
        at = 0
        for start, stop in block.queries:
            spans += [(low, base + at + low - start, high - low) for low, high in intersect(((start, stop),), tokens)]
            at += stop - start
        return _Rectangle(block.heads, block.num_queries, 1, tuple((cell, count) for _, cell, count in sorted(spans)))

    def unit_kv(self, cut: CutSequence, block: Block, tokens: tuple[Interval, ...]) -> _Rectangle:
        """Unit k rows of a block for `tokens`."""
        _, base = self._bases[cut.sequence, block.head_start]
        return _Rectangle(block.heads, cut.length, 1, tuple((base + start, stop - start) for start, stop in tokens))


def _gradient_sums(
    sections: list[_Section], home_unpack: Index, cells: int, heads: int
) -> tuple[Index, tuple[tuple[Index, Index], ...]]:
    """First copies of dk, dv into `home_unpack`, tables of the further ones in ascending tile rank."""
    copies: dict[int, list[int]] = {}  # sequence -> copies so far, per head
    slots: dict[tuple[int, int], int] = {}  # (sequence, head) -> first place in sum_rows
    rows: list[Index] = []
    further: list[list[tuple[Index, Index, int]]] = []
    num_slots = 0
    for section in sorted(sections, key=lambda s: (s.tile_rank, s.at)):
        x, s, h0 = section.rectangle, section.cut.sequence, section.block.head_start
        count = copies.setdefault(s, [0] * heads)
        for start, stop in _runs(count[h0 : h0 + x.heads]):
            part, at, level = x.part(start, stop), section.at + start * x.width, count[h0 + start]
            count[h0 + start : h0 + stop] = [level + 1] * (stop - start)
            if level == 0:
                _fill_unpack(home_unpack, at, part, cells)
                _fill_unpack(home_unpack, at + section.v_shift, part, 2 * cells)
                continue
            if level == 1:
                cell = _empty(part.size)
                _fill_pack(cell, 0, part, cells)
                rows.append(cell)
                for i in range(part.heads):
                    slots[s, h0 + start + i] = num_slots
                    num_slots += x.width
            first = np.array([slots[s, h] for h in range(h0 + start, h0 + stop)], dtype=np.int32)
            slot: Index = np.add(first[:, None], np.arange(x.width, dtype=np.int32), dtype=np.int32).ravel()
            further += [[] for _ in range(level - len(further))]
            places: Index = np.arange(at, at + part.size, dtype=np.int32)
            further[level - 1].append((slot, places, section.v_shift))
    k_rows = np.concatenate(rows) if rows else _empty(0)
    sums = tuple(
        (
            np.concatenate([slot for slot, _, _ in level] + [slot + np.int32(num_slots) for slot, _, _ in level]),
            np.concatenate([place for _, place, _ in level] + [place + np.int32(shift) for _, place, shift in level]),
        )
        for level in further
    )
    return np.concatenate([k_rows, k_rows + np.int32(cells)]), sums


def _partners(cut: CutSequence, rank: int) -> Iterable[int]:
    """Ranks with which this one exchanges rows of a sequence."""
    return {*(cut.blocks if rank in cut.homes else ()), *(cut.homes if rank in cut.blocks else ())} - {rank}


def _runs(values: list[int]) -> Iterable[tuple[int, int]]:
    """Maximal ranges of equal values."""
    start = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[start]:
            yield start, i
            start = i


def _sizes(rectangles: dict[int, list[_Rectangle]]) -> dict[int, int]:
    return {p: sum(x.size for x in part) for p, part in rectangles.items()}


def _empty(size: int) -> Index:
    return np.empty(size, dtype=np.int32)


def _fill_pack(table: Index, at: int, x: _Rectangle, shift: int) -> None:
    """table[at ...] = cells of the rectangle, head by head, + shift."""
    out = table[at : at + x.size].reshape(x.heads, -1)
    head = np.arange(0, x.heads * x.head_stride, x.head_stride, dtype=np.int32)[:, None]
    column = 0
    for base, count in x.spans:
        token = np.arange(base + shift, base + shift + count * x.token_stride, x.token_stride, dtype=np.int32)
        np.add(head, token, out=out[:, column : column + count])
        column += count


def _fill_unpack(table: Index, at: int, x: _Rectangle, shift: int) -> None:
    """table[cell + shift] = its place in W, the rectangle's rows being at `at`, head by head."""
    head = np.arange(at, at + x.size, x.width, dtype=np.int32)[:, None]
    column = 0
    for base, count in x.spans:
        item = table.itemsize
        view = as_strided(table[base + shift :], (x.heads, count), (x.head_stride * item, x.token_stride * item))
        np.add(head, np.arange(column, column + count, dtype=np.int32), out=view)
        column += count
