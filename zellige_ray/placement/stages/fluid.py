"""Fluid pouring: tokens and attention of a pool's anchors as shares, each brought to a common level over the ranks.

Two shapes. Chain (McNaughton's wrap-around): anchors in turn, ranks in turn, each filled to the level before the next.
Wide: every anchor over all ranks, in proportion to what they have left.
"""

from __future__ import annotations

from zellige_ray.placement.stages.pool import Pool
from zellige_ray.placement.stages.scene import Scene

PENALTY = 10  # of the time, per share of the memory that is missing
GOOD = 1.002  # of perfect balance: close enough to look no further
SHARED = 0.6  # of a head: what a border inside heads adds to the keys of a rank, on average

Spans = list[tuple[int, float, float]]  # (position of the rank, from, to) as shares of the whole sequence


class Fluid:
    """Shares of tokens and of attention of each anchor, and the time that results. Units: seconds."""

    __slots__ = ("attention", "linear_s", "time_s", "tokens", "wait_s")

    def __init__(
        self, tokens: list[Spans], attention: list[Spans], linear_s: float, wait_s: float, time_s: float
    ) -> None:
        self.tokens = tokens
        self.attention = attention
        self.linear_s = linear_s
        self.wait_s = wait_s
        self.time_s = time_s


def pool_time(scene: Scene, pool: Pool) -> float:
    """Fluid time of a pool: the better of the two shapes; longer where its tokens don't fit in memory."""
    if pool.time >= 0.0:
        return pool.time
    if not pool.anchors:
        time = pool.load[0] / pool.speeds[0]
    elif len(pool.anchors) == 1:
        time = _single_time(scene, pool)
    else:
        time = fluid(scene, pool, wide=False).time_s
        if time > pool.work / pool.speed * GOOD:
            time = min(time, fluid(scene, pool, wide=True).time_s)
    if pool.tokens > pool.cap:
        time *= 1 + PENALTY * (pool.tokens / pool.cap - 1)
    if scene.tight:
        time *= 1 + PENALTY * max([0.0, *[held / cap - 1 for held, cap in zip(pool.held, pool.caps, strict=True)]])
    pool.time = time
    return time


def _single_time(scene: Scene, pool: Pool) -> float:
    """`fluid(...).time_s` of a pool with one anchor, without the shares."""
    if not pool.even or scene.node_of[pool.ranks[0]] != scene.node_of[pool.ranks[-1]]:
        return fluid(scene, pool, wide=False).time_s
    j, size, speed = pool.anchors[0], len(pool.ranks), pool.speeds[0]
    linear, attention, quanta = scene.linear[j], scene.attention[j], scene.quanta
    kv, ones = 2 * scene.kv_share, pool.speeds
    unit = scene.tokens[j] * quanta * scene.row_s[0]
    top = level(ones, pool.linear, linear)
    linear_s = max(top, max(pool.linear) / speed)
    if scene.tight:
        room = [top * speed - u for u in pool.linear]
        if _within_memory(scene, pool, room, linear) is not room:
            return fluid(scene, pool, wide=False).time_s
    shares = [(top * speed - u) / linear if u < top * speed else 0.0 for u in pool.linear]
    late, wait, best = 2 * scene.late(size - 1), pool.wait, 0.0
    for step in range(2):
        base = [during(scene, o / speed, wait) * speed for o in pool.own]
        height = level(ones, base, attention) * speed
        give = get = out = 0.0
        parts = []
        for x, b in zip(shares, base, strict=True):
            y = (height - b) / attention if b < height else 0.0
            parts.append(y * attention)
            q_out, q_in = x * (1 - y), y * (1 - x)
            odd = (y * quanta) % 1
            t = (y + SHARED / quanta) * (1 - x) if y < 1.0 and 0.02 < odd < 0.98 else q_in
            give = q_out if q_out > give else give
            t = q_in + kv * t
            get = t if t > get else get
            most = q_out if q_out > q_in else q_in
            out = most if most > out else out
        give *= 1 + kv
        wait = ((give if give > get else get) + out) * unit + late
        time = linear_s + max(
            [during(scene, o / speed, wait) + p / speed for o, p in zip(pool.own, parts, strict=True)]
        )
        best = time if step == 0 or time < best else best
    return best


def fluid(scene: Scene, pool: Pool, wide: bool) -> Fluid:
    """Pours a pool. The level of attention depends on the wait and the wait on the shares: two rounds settle it."""
    cut = _spread if wide else _wrap
    speeds = pool.speeds
    linear = [scene.linear[j] for j in pool.anchors]
    attention = [scene.attention[j] for j in pool.anchors]
    top = level(speeds, pool.linear, sum(linear))
    room = [top * s - u for s, u in zip(speeds, pool.linear, strict=True)]
    if scene.tight:
        room = _within_memory(scene, pool, room, sum(linear))
    tokens = cut(linear, room)
    linear_s = max([(u + r if r > 0.0 else u) / s for u, r, s in zip(pool.linear, room, speeds, strict=True)])
    wait, best = pool.wait, None
    for _ in range(2):
        base = [during(scene, o / s, wait) * s for o, s in zip(pool.own, speeds, strict=True)]
        height = level(speeds, base, sum(attention))
        spans = cut(attention, [height * s - b for s, b in zip(speeds, base, strict=True)])
        wait = share_wait(scene, pool, tokens, spans)
        poured = [0.0] * len(speeds)
        for amount, parts in zip(attention, spans, strict=True):
            for k, a, b in parts:
                poured[k] += (b - a) * amount
        rest = zip(pool.own, poured, speeds, strict=True)
        time_s = linear_s + max([during(scene, o / s, wait) + p / s for o, p, s in rest])
        if best is None or time_s < best.time_s:
            best = Fluid(tokens, spans, linear_s, wait, time_s)
        if time_s <= pool.work / pool.speed * GOOD:
            break
    assert best is not None
    return best


def share_wait(scene: Scene, pool: Pool, tokens: list[Spans], attention: list[Spans]) -> float:
    """Both exchanges of the slowest ranks when the anchors are cut so. Units: seconds."""
    size = len(pool.ranks)
    place = [scene.node_of[r] for r in pool.ranks]
    many = place[0] != place[-1] or len(set(place)) > 1
    kv, quanta, near, _far = 2 * scene.kv_share, scene.quanta, *scene.row_s
    send, recv, out, peers = [0.0] * size, [0.0] * size, [0.0] * size, [0] * size
    for j, homes, tiles in zip(pool.anchors, tokens, attention, strict=True):
        x, y = [0.0] * size, [0.0] * size
        for k, a, b in homes:
            x[k] = b - a
        for k, a, b in tiles:
            y[k] = b - a
        rows = scene.tokens[j] * quanta
        held = [k for k in range(size) if x[k] > 0.0 or y[k] > 0.0]
        count = len(held) - 1
        if many:
            _far_rows(scene, place, x, y, rows, held, send, recv, out)
        for k in held:
            a, b = x[k], y[k]
            peers[k] += count
            if not many:
                # a head that two ranks share takes its keys to both
                t = b + SHARED / quanta if b < 1.0 and 0.02 < (b * quanta) % 1 < 0.98 else b
                give, get = a * (1 - b) * rows, b * (1 - a) * rows
                send[k] += give * (1 + kv) * near
                recv[k] += (get + kv * t * (1 - a) * rows) * near
                out[k] += (give if give > get else get) * near
    late = [scene.late(min(n, size - 1)) for n in peers]
    in_s = max([(s if s > r else r) + t for s, r, t in zip(send, recv, late, strict=True)])
    return in_s + max([o + t for o, t in zip(out, late, strict=True)])


def _far_rows(
    scene: Scene,
    place: list[int],
    x: list[float],
    y: list[float],
    rows: float,
    held: list[int],
    send: list[float],
    recv: list[float],
    out: list[float],
) -> None:
    """Adds the seconds of a sequence's rows on a pool of several nodes; the links in and between nodes work at once."""
    near, far = scene.row_s
    kv, quanta = 2 * scene.kv_share, scene.quanta
    x_node: dict[int, float] = {}
    y_node: dict[int, float] = {}
    for k in held:
        x_node[place[k]] = x_node.get(place[k], 0.0) + x[k]
        y_node[place[k]] = y_node.get(place[k], 0.0) + y[k]
    for k in held:
        a, b = x[k], y[k]
        t = b + SHARED / quanta if b < 1.0 and 0.02 < (b * quanta) % 1 < 0.98 else b
        away_y, away_x = 1 - y_node[place[k]], 1 - x_node[place[k]]
        give_far, get_far = a * away_y * rows, away_x * rows
        give, get = a * (1 - away_y - b) * rows, (1 - away_x - a) * rows
        send[k] += max(give * near, give_far * far) * (1 + kv)
        recv[k] += max(get * near, get_far * far) * (b + kv * t)
        out[k] += max(give * near, give_far * far, b * get * near, b * get_far * far)


def during(scene: Scene, own_s: float, wait_s: float) -> float:
    """Time of own attention and exchange together, pass by pass the longer of the two."""
    if not scene.overlap:
        return own_s + wait_s
    if own_s >= wait_s * scene.hidden_at:
        return own_s
    if own_s <= 0.0:
        return wait_s
    total = 0.0
    for c, e in scene.passes:
        a, b = own_s * c, wait_s * e
        total += a if a > b else b
    return total


def level(capacity: list[float], used: list[float], amount: float) -> float:
    """The level L at which the sum of max(0, L * capacity - used) is `amount` (water filling)."""
    height = (amount + sum(used)) / sum(capacity)
    for c, u in zip(capacity, used, strict=True):
        if u > height * c:
            break
    else:
        return height
    c_sum = u_sum = 0.0
    order = sorted([(u / c, c, u) for c, u in zip(capacity, used, strict=True)])
    last = len(order) - 1
    for k, (_, c, u) in enumerate(order):
        c_sum += c
        u_sum += u
        height = (amount + u_sum) / c_sum
        if k == last or height <= order[k + 1][0]:
            break
    return height


def _within_memory(scene: Scene, pool: Pool, room: list[float], amount: float) -> list[float]:
    """The room for token-wise work of anchors, moved from ranks whose memory is too small; itself if all tokens fit."""
    work = amount / sum([scene.tokens[j] for j in pool.anchors])  # of one token
    most = [max(0.0, cap - held) * work for cap, held in zip(pool.caps, pool.held, strict=True)]
    if all([r <= m for r, m in zip(room, most, strict=True)]):
        return room
    fixed: dict[int, float] = {}
    while True:
        free = [k for k in range(len(room)) if k not in fixed]
        left = amount - sum(fixed.values())
        if not free or left <= 0.0:
            break
        speeds = [pool.speeds[k] for k in free]
        top = level(speeds, [pool.linear[k] for k in free], left)
        over = [k for k, s in zip(free, speeds, strict=True) if top * s - pool.linear[k] > most[k]]
        if not over:
            return [fixed[k] if k in fixed else top * pool.speeds[k] - pool.linear[k] for k in range(len(room))]
        fixed |= {k: most[k] for k in over}
    return [m + (amount - sum(most)) * c / pool.cap for m, c in zip(most, pool.caps, strict=True)]


def _wrap(amounts: list[float], room: list[float]) -> list[Spans]:
    """Each amount over the room in order."""
    out: list[Spans] = []
    at, left, last = 0, room[0], len(room) - 1
    for amount in amounts:
        spans: Spans = []
        done, tiny = 0.0, amount * 1e-9
        while True:
            need = amount - done
            if need <= left + tiny or at == last:
                spans.append((at, done / amount, 1.0))
                left -= need
                break
            if left > tiny:
                spans.append((at, done / amount, (done + left) / amount))
                done += left
            at += 1
            left = room[at]
        out.append(spans)
    return out


def _spread(amounts: list[float], room: list[float]) -> list[Spans]:
    """Every amount over all of the room in proportion."""
    total, at = sum([r for r in room if r > 0.0]), 0.0
    spans: Spans = []
    for k, part in enumerate(room):
        if part > 0.0:
            spans.append((k, at / total, (at + part) / total))
            at += part
    spans[-1] = (spans[-1][0], spans[-1][1], 1.0)
    return [spans] * len(amounts)
