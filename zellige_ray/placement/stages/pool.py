"""A pool: ranks that share anchors and so meet twice per layer, with the fillers that they hold."""

from __future__ import annotations

from zellige_ray.placement.stages.scene import Scene


class Pool:
    """Ranks, the anchors cut over them, and what fillers put on each rank (by position). Units: seconds at speed 1.

    A rank without anchors is a pool of one. wait: both exchanges, estimated for even cuts. load = linear + own. held:
    tokens of fillers on each rank, of the caps that memory sets; tokens, cap: of the pool, anchors included.
    """

    __slots__ = (
        "anchors",
        "cap",
        "caps",
        "even",
        "held",
        "linear",
        "load",
        "own",
        "ranks",
        "speed",
        "speeds",
        "time",
        "tokens",
        "wait",
        "work",
    )

    def __init__(self, scene: Scene, ranks: list[int], anchors: list[int]) -> None:
        size = len(ranks)
        self.time = -1.0  # fluid time, where known
        self.ranks = ranks
        self.anchors = anchors
        self.speeds = [scene.speed[r] for r in ranks]
        self.speed = sum(self.speeds)
        self.even = min(self.speeds) == max(self.speeds)
        self.linear = [0.0] * size
        self.own = [0.0] * size
        self.load = [0.0] * size
        self.work = sum([scene.work[j] for j in anchors])
        self.tokens = sum([scene.tokens[j] for j in anchors])
        self.caps = [scene.cap[r] for r in ranks]
        self.cap = sum(self.caps)
        self.held = [0] * size
        nodes = len({scene.node_of[r] for r in ranks})
        self.wait = chain_wait(scene, anchors, ranks, nodes) if size > 1 else 0.0

    def put(self, scene: Scene, j: int, k: int) -> None:
        """Filler j onto the rank at position k."""
        self.linear[k] += scene.linear[j]
        self.own[k] += scene.attention[j]
        self.load[k] += scene.work[j]
        self.work += scene.work[j]
        self.tokens += scene.tokens[j]
        self.held[k] += scene.tokens[j]
        self.time = -1.0

    def take(self, scene: Scene, j: int, k: int) -> None:
        """Filler j away from the rank at position k."""
        self.linear[k] -= scene.linear[j]
        self.own[k] -= scene.attention[j]
        self.load[k] -= scene.work[j]
        self.work -= scene.work[j]
        self.tokens -= scene.tokens[j]
        self.held[k] -= scene.tokens[j]
        self.time = -1.0

    def left(self, k: int) -> float:
        """Tokens that still fit on the rank at position k, and in the pool."""
        return min(self.cap - self.tokens, self.caps[k] - self.held[k])

    def fits(self, tokens: int, k: int) -> bool:
        """Do that many tokens still fit on the rank at position k, and in the pool."""
        return self.tokens + tokens <= self.cap and self.held[k] + tokens <= self.caps[k]

    def copy(self) -> Pool:
        """The same pool, to be changed on its own."""
        out = Pool.__new__(Pool)
        out.ranks, out.anchors, out.speeds, out.speed = self.ranks, self.anchors, self.speeds, self.speed
        out.even, out.caps, out.cap, out.wait = self.even, self.caps, self.cap, self.wait
        out.held = self.held[:]
        out.linear, out.own, out.load = self.linear[:], self.own[:], self.load[:]
        out.work, out.tokens, out.time = self.work, self.tokens, self.time
        return out


def merge(scene: Scene, pools: list[Pool], extra: list[int]) -> Pool:
    """One pool of several, with more anchors."""
    out = Pool(scene, [r for p in pools for r in p.ranks], sorted([j for p in pools for j in p.anchors] + extra))
    out.linear = [x for p in pools for x in p.linear]
    out.own = [x for p in pools for x in p.own]
    out.load = [x for p in pools for x in p.load]
    out.held = [x for p in pools for x in p.held]
    out.work += sum(out.load)
    out.time = -1.0
    out.tokens = sum([p.tokens for p in pools]) + sum([scene.tokens[j] for j in extra])
    return out


def chain_wait(scene: Scene, anchors: list[int], ranks: list[int], nodes: int) -> float:
    """Both exchanges of anchors that are spread evenly, in turn, over the ranks. Units: seconds."""
    if not anchors:
        return 0.0
    total = sum([scene.work[j] for j in anchors])
    worst = 0.0
    for j in anchors:
        width = max(2.0, len(ranks) * scene.work[j] / total)
        worst = max(worst, even_wait(scene, scene.tokens[j], width, nodes))
    return worst


def even_wait(scene: Scene, tokens: int, width: float, nodes: int) -> float:
    """Both exchanges of one sequence cut evenly over `width` ranks on some nodes. Units: seconds."""
    quanta = scene.quanta / width
    shared = 0.6 if quanta % 1 > 0.02 else 0.0  # of a head, whose keys go to two ranks
    rows = tokens * (2 * quanta + 2 * scene.kv_share * (quanta + shared))
    latency = 2 * scene.late(width - 1)
    if nodes == 1:
        return rows * (1 - 1 / width) * scene.row_s[0] + latency
    inside, across = rows * (1 / nodes - 1 / width), rows * (1 - 1 / nodes)
    return max(inside * scene.row_s[0], across * scene.row_s[1]) + latency
