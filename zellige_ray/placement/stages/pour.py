"""Pouring for good: shares of a pool's anchors become whole tokens, heads and queries.

A head that the border between two ranks falls into is shared through its queries, or the border moves to the next head
where that is faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zellige_ray.placement.pack import ShardRow, TileRow
from zellige_ray.placement.stages.fluid import GOOD, Fluid, Spans, during, fluid
from zellige_ray.placement.stages.pool import Pool
from zellige_ray.placement.stages.scene import Scene

ALIKE = 1.02  # shapes whose times differ by more are not both rounded
SNAPS = (0.0, 0.25, 0.5)  # borders closer than this to a whole head move onto it

Rect = tuple[int, int, int, int]


@dataclass(slots=True)
class Pouring:
    """Where the tokens and the attention of a pool's anchors go, and the time that results. Units: seconds."""

    shards: list[ShardRow]
    tiles: list[TileRow]
    time_s: float


def pour(scene: Scene, pool: Pool) -> Pouring:
    """The best pouring of a pool: chain or wide, borders inside heads or between them."""
    ideal = pool.work / pool.speed * GOOD
    chain = fluid(scene, pool, wide=False)
    if chain.time_s <= ideal:
        got = _whole(scene, pool, chain, 0.0, chain.attention)
        if got.time_s <= ideal:
            return got
    best: Pouring | None = None
    if len(pool.anchors) > 1:
        wide = fluid(scene, pool, wide=True)
        if wide.time_s < chain.time_s * ALIKE:
            balanced = _balance(scene, pool, wide)
            best = _best(scene, pool, wide, ((0.0, balanced), (0.5, balanced), (0.0, None)), ideal)
            if best.time_s <= chain.time_s:
                return best
    other = _best(scene, pool, chain, [(snap, None) for snap in SNAPS], ideal)
    return best if best is not None and best.time_s <= other.time_s else other


def _best(
    scene: Scene, pool: Pool, shape: Fluid, ways: Iterable[tuple[float, list[Spans] | None]], ideal: float
) -> Pouring:
    """The fastest of several ways to round a shape; the first that is as good as balance allows ends the search."""
    best: Pouring | None = None
    for snap, spans in ways:
        got = _whole(scene, pool, shape, snap, spans or shape.attention)
        if best is None or got.time_s < best.time_s:
            best = got
        if best.time_s <= ideal:
            break
    assert best is not None
    return best


def _balance(scene: Scene, pool: Pool, wide: Fluid) -> list[Spans]:
    """Attention spans of a wide shape with borders on whole heads; each anchor makes good the error of those before.

    The last anchor keeps its borders inside heads, so that the sums stay exact.
    """
    quanta = scene.quanta
    error = [0.0] * (len(pool.ranks) + 1)  # seconds by which the anchors so far are ahead, at the end of each rank
    out: list[Spans] = []
    for at, (j, parts) in enumerate(zip(pool.anchors, wide.attention, strict=True)):
        cell, last = scene.attention[j] / quanta, at + 1 == len(pool.anchors)
        spans: Spans = []
        low = 0.0
        for k, _, b in parts:
            high = min(max(b * quanta - error[k] / cell, low), float(quanta))
            if b >= 1.0:
                high = float(quanta)
            elif not last:
                high = max(low, float(round(high)))
            error[k] += (high - b * quanta) * cell
            if high > low:
                spans.append((k, low / quanta, high / quanta))
            low = high
        out.append(spans)
    return out


def _whole(scene: Scene, pool: Pool, shape: Fluid, snap: float, attention: list[Spans]) -> Pouring:
    """Whole tokens, heads and queries for the shares of a shape, and the exact time."""
    size, quanta, group = len(pool.ranks), scene.quanta, scene.group
    send_in, recv_in, way_out, poured = [0.0] * size, [0.0] * size, [0.0] * size, [0.0] * size
    kv, peers = 2 * scene.kv_share, 0
    out = Pouring([], [], 0.0)
    for j, homes, parts in zip(pool.anchors, shape.tokens, attention, strict=True):
        n = scene.tokens[j]
        held, touched, area, local = [(0, 0)] * size, [0] * size, [0] * size, [0] * size
        for k, a, b in homes:
            low, high = round(a * n), round(b * n)
            if high > low:
                held[k] = (low, high)
                out.shards.append((j, pool.ranks[k], low, high))
        for k, low_q, high_q in _snap(parts, quanta, snap):
            a, b = held[k]
            for h0, h1, q0, q1 in rects(low_q, high_q, n):
                out.tiles.append((j, pool.ranks[k], h0 * group, h1 * group, q0, q1))
                touched[k] += h1 - h0
                area[k] += (h1 - h0) * (q1 - q0)
                both = (b if b < q1 else q1) - (a if a > q0 else q0)
                if both > 0:
                    local[k] += (h1 - h0) * both
        cell, total = scene.attention[j] / (n * quanta), sum(touched)
        met = -1
        for k in range(size):
            x = held[k][1] - held[k][0]
            if x or area[k]:
                met += 1
                q_out, q_in = x * quanta - local[k], area[k] - local[k]
                send_in[k] += q_out + kv * x * (total - touched[k])
                recv_in[k] += q_in + kv * (n - x) * touched[k]
                way_out[k] += q_in if q_in > q_out else q_out
                poured[k] += area[k] * cell
        peers = max(peers, met)
    rows = max(max(send_in), max(recv_in)) + max(way_out)
    wait = rows * _unit(scene, pool) + 2 * scene.late(peers)
    busy = zip(pool.own, poured, pool.speeds, strict=True)
    out.time_s = shape.linear_s + max([during(scene, o / s, wait) + p / s for o, p, s in busy])
    return out


def rects(low: float, high: float, tokens: int) -> list[Rect]:
    """Head quanta [low, high) as rectangles (quantum from, to, query from, to); fractions of a head become queries."""
    first, last = int(low), int(high)
    cut_low, cut_high = round((low - first) * tokens), round((high - last) * tokens)
    if first == last:
        return [(first, first + 1, cut_low, cut_high)] if cut_high > cut_low else []
    out = []
    if cut_low:
        if cut_low < tokens:
            out.append((first, first + 1, cut_low, tokens))
        first += 1
    if last > first:
        out.append((first, last, 0, tokens))
    if cut_high:
        out.append((last, last + 1, 0, cut_high))
    return out


def _snap(spans: Spans, quanta: int, snap: float) -> Spans:
    out: Spans = []
    for k, a, b in spans:
        low, high = _near(a * quanta, snap), _near(b * quanta, snap)
        if high > low:
            out.append((k, low, high))
    return out


def _near(x: float, snap: float) -> float:
    whole = round(x)
    return float(whole) if abs(x - whole) <= (snap if snap > 1e-6 else 1e-6) else x


def _unit(scene: Scene, pool: Pool) -> float:
    """Seconds of one row: on the link in the node, or what mixed traffic of several nodes takes on average."""
    nodes, size = len({scene.node_of[r] for r in pool.ranks}), len(pool.ranks)
    if nodes == 1:
        return scene.row_s[0]
    share = (size - size / nodes) / (size - 1)
    return max(share * scene.row_s[1], (1 - share) * scene.row_s[0])
