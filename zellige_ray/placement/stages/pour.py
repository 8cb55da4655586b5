"""Pouring: tokens and attention of anchors into what fillers leave on the ranks of a pool, each to a common level.

McNaughton's wrap-around: anchors in order, ranks in order, each rank filled to the level before the next one starts. A head
that the border between two ranks falls into is shared through its queries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zellige_ray.placement.pack import ShardRow, TileRow
from zellige_ray.placement.stages.scene import Scene, during


@dataclass(slots=True)
class Pool:
    """Ranks that share anchors, and what fillers already put on them (by position in ranks). Units: seconds."""

    ranks: list[int]
    anchors: list[int]
    linear: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Pouring:
    """Where the tokens and the attention of a pool's anchors go, and the time that results. Units: seconds."""

    shards: list[ShardRow]
    tiles: list[TileRow]
    time_s: float


def level(capacity: list[float], used: list[float], amount: float) -> float:
    """The level L at which sum of max(0, L * capacity - used) is `amount` (water filling)."""
    if len(used) == 1:
        return (used[0] + amount) / capacity[0]
    order = sorted((u / c, c, u) for c, u in zip(capacity, used, strict=True))
    c_sum = u_sum = 0.0
    height = 0.0
    for k, (_, c, u) in enumerate(order):
        c_sum += c
        u_sum += u
        height = (amount + u_sum) / c_sum
        if k + 1 == len(order) or height <= order[k + 1][0]:
            break
    return height


def pour(scene: Scene, pool: Pool, snap: float) -> Pouring:
    """Pours a pool; snap: borders closer than this to a whole head quantum move onto it."""
    ranks, speed = pool.ranks, [scene.speed[r] for r in pool.ranks]
    linear_sum = sum(scene.linear[j] for j in pool.anchors)
    attention_sum = sum(scene.attention[j] for j in pool.anchors)
    top = level(speed, pool.linear, linear_sum)
    room = [max(0.0, top * s - u) for s, u in zip(speed, pool.linear, strict=True)]
    cuts = _wrap([scene.linear[j] for j in pool.anchors], room)
    shards = [_integers(spans, scene.tokens[j]) for j, spans in zip(pool.anchors, cuts, strict=True)]
    linear_s = max(max(u, top * s if u < top * s else u) / s for u, s in zip(pool.linear, speed, strict=True))
    wait = _first_guess(scene, pool)
    best: Pouring | None = None
    for _ in range(3):
        # during() is in seconds of the rank; attention poured is in seconds at speed 1
        base = [during(scene, o / s, wait) * s for o, s in zip(pool.own, speed, strict=True)]
        height = level(speed, base, attention_sum)
        room = [max(0.0, height * s - b) for s, b in zip(speed, base, strict=True)]
        cuts = _wrap([scene.attention[j] for j in pool.anchors], room)
        borders = [_snap(spans, scene.quanta, snap) for spans in cuts]
        got = _build(scene, pool, shards, borders)
        wait = got[1]
        poured = got[2]
        attention_s = max((during(scene, o / s, wait) + a / s) for o, a, s in zip(pool.own, poured, speed, strict=True))
        time_s = linear_s + attention_s
        if best is None or time_s < best.time_s:
            best = Pouring(*got[0], time_s)
    assert best is not None
    return best


def _first_guess(scene: Scene, pool: Pool) -> float:
    g = len(pool.ranks)
    tokens = sum(scene.tokens[j] for j in pool.anchors)
    return pool_wait(scene, tokens, g, len({scene.node_of[r] for r in pool.ranks}))


def pool_wait(scene: Scene, tokens: int, g: int, nodes: int) -> float:
    """Both exchanges of anchors spread evenly over g ranks. Units: seconds."""
    if g == 1:
        return 0.0
    rows = (2 + 2 * scene.kv_share) * tokens / g * scene.quanta
    inside, across = rows * (g / nodes - 1) / g, rows * (g - g / nodes) / g
    return max(inside * scene.row_s[0], across * scene.row_s[1]) + 2 * (g - 1) * scene.latency_s


def _wrap(amounts: list[float], room: list[float]) -> list[list[tuple[int, float, float]]]:
    """Each amount over the room in order: (position, from, to) as shares of the amount."""
    out, at, left = [], 0, room[0]
    last = len(room) - 1
    for amount in amounts:
        spans, done = [], 0.0
        while True:
            need = amount - done
            if need <= left or at == last:
                spans.append((at, done / amount, 1.0))
                left -= need
                break
            if left > amount * 1e-9:
                spans.append((at, done / amount, (done + left) / amount))
                done += left
            at += 1
            left = room[at]
        out.append(spans)
    return out


def _integers(spans: list[tuple[int, float, float]], total: int) -> list[tuple[int, int, int]]:
    out = [(k, round(a * total), round(b * total)) for k, a, b in spans]
    return [x for x in out if x[2] > x[1]]


def _snap(spans: list[tuple[int, float, float]], quanta: int, snap: float) -> list[tuple[int, float, float]]:
    out = []
    for k, a, b in spans:
        low, high = _near(a * quanta, snap), _near(b * quanta, snap)
        if high > low:
            out.append((k, low, high))
    return out


def _near(x: float, snap: float) -> float:
    whole = round(x)
    return float(whole) if abs(x - whole) <= max(snap, 1e-6) else x


def _rects(low: float, high: float, tokens: int) -> list[tuple[int, int, int, int]]:
    """Quanta [low, high) as rectangles (quantum from, to, query from, to)."""
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


def _build(
    scene: Scene,
    pool: Pool,
    shards: list[list[tuple[int, int, int]]],
    borders: list[list[tuple[int, float, float]]],
) -> tuple[tuple[list[ShardRow], list[TileRow]], float, list[float]]:
    """Rows of the pool's anchors, the wait of its slowest ranks (both ways), attention poured on each rank."""
    g = len(pool.ranks)
    many = len({scene.node_of[r] for r in pool.ranks}) > 1
    send_in, recv_in, send_out = [0.0] * g, [0.0] * g, [0.0] * g
    poured = [0.0] * g
    shard_rows: list[ShardRow] = []
    tile_rows: list[TileRow] = []
    peers = 0
    kv = 2 * scene.kv_share
    for j, spans, cells in zip(pool.anchors, shards, borders, strict=True):
        n, quanta = scene.tokens[j], scene.quanta
        held = [(0, 0)] * g
        for k, a, b in spans:
            held[k] = (a, b)
            shard_rows.append((j, pool.ranks[k], a, b))
        touched, area, local = [0] * g, [0] * g, [0] * g
        for k, low, high in cells:
            a, b = held[k]
            for h0, h1, q0, q1 in _rects(low, high, n):
                tile_rows.append((j, pool.ranks[k], h0 * scene.group, h1 * scene.group, q0, q1))
                touched[k] += h1 - h0
                area[k] += (h1 - h0) * (q1 - q0)
                both = min(b, q1) - max(a, q0)
                if both > 0:
                    local[k] += (h1 - h0) * both
            poured[k] += area[k] * scene.attention[j] / (n * quanta)
        total = sum(touched)
        for k in range(g):
            x = held[k][1] - held[k][0]
            if x or area[k]:
                q_out = x * quanta - local[k]
                q_in = area[k] - local[k]
                send_in[k] += q_out + kv * x * (total - touched[k])
                recv_in[k] += q_in + kv * (n - x) * touched[k]
                send_out[k] += max(q_in, q_out)
        peers = max(peers, len({k for k, _, _ in spans} | {k for k, _, _ in cells}) - 1)
    if many:
        nodes = len({scene.node_of[r] for r in pool.ranks})
        share = (g - g / nodes) / (g - 1)
        unit = max(share * scene.row_s[1], (1 - share) * scene.row_s[0])
    else:
        unit = scene.row_s[0]
    rows = max(max(send_in), max(recv_in)) + max(send_out)
    wait = rows * unit + 2 * peers * scene.latency_s if g > 1 else 0.0
    return (shard_rows, tile_rows), wait, poured
