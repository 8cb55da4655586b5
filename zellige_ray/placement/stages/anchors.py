"""Stage one: which ranks of a site share its anchors, the sequences that are too long for a rank."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor

from zellige_ray.placement.stages.nodes import Site
from zellige_ray.placement.stages.pool import Pool, chain_wait, even_wait
from zellige_ray.placement.stages.scene import Scene

FITS = 1.0001  # of the target: what a rank holds whole
STRETCH = 1.06  # of the target: what a rank holds whole where exchanges cost more than that
MANY = 4  # anchors, up to which all their groupings are weighed
WIDER = 4  # ranks above the need that a pool may get

Groups = list[list[int]]  # anchors that share a pool
Widths = tuple[int, ...]  # ranks of each group


def layouts(scene: Scene, site: Site, target_s: float, limit: int) -> Iterator[tuple[float, list[Pool]]]:
    """The most promising ways to spread the site's anchors over its ranks, best first, with an estimate of their time.

    Estimates are in units of the target. A way: anchors in groups, each group on a run of ranks, the other ranks
    single; or all anchors over all ranks (no widths).
    """
    if len(site.ranks) == 1:
        yield 1.0, _pools(scene, site.ranks, [], ())
        return
    top = target_s * max([scene.speed[r] for r in site.ranks])
    most = max([scene.cap[r] for r in site.ranks])
    ways: list[tuple[float, Widths, Groups]] = []
    seen: set[int] = set()
    for bar in (FITS, STRETCH):
        anchors = [j for j in site.members if scene.work[j] > bar * top or scene.tokens[j] > most]
        if len(anchors) in seen:
            continue
        seen.add(len(anchors))
        if not anchors:
            ways.append((max([1.0, *[scene.work[j] / top for j in site.members[:1]]]), (), []))
            continue
        wait = chain_wait(scene, anchors, site.ranks, len(site.nodes))
        ways.append((_estimate(scene, site, target_s, anchors, wait), (len(site.ranks),), [anchors]))
        if len(site.nodes) == 1 and not scene.full:
            groupings = _groupings(anchors, scene.small)
            options = [(score, widths, g) for g in groupings for score, widths in _widths(scene, site, g, target_s)]
            options.sort(key=lambda x: x[:2])
            ways += options[:limit]
    ways.sort(key=lambda x: x[0])
    for score, widths, groups in ways:
        yield score, _pools(scene, site.ranks, groups, widths)


def _groupings(anchors: list[int], all_ways: bool) -> Iterator[Groups]:
    """Each anchor on its own; or all ways to group a few, and of many the longest apart from the rest."""
    if not all_ways or len(anchors) > MANY:
        yield [[j] for j in anchors]
    if not all_ways:
        return
    if len(anchors) > MANY:
        for k in range(1, len(anchors) - 1):
            yield [*[[j] for j in anchors[:k]], anchors[k:]]
        return
    ways: list[Groups] = [[]]
    for j in anchors:
        ways = [
            [*[[*group, j] if k == at else group for k, group in enumerate(way)], *([[j]] if at == len(way) else [])]
            for way in ways
            for at in range(len(way) + 1)
        ]
    yield from ways


def _estimate(scene: Scene, site: Site, target_s: float, anchors: list[int], wait: float) -> float:
    """Time of all anchors over all ranks: balance, and the exchange that fillers can't hide."""
    speed = sum([scene.speed[r] for r in site.ranks])
    own = sum([scene.attention[j] for j in site.members]) - sum([scene.attention[j] for j in anchors])
    spread = len(site.ranks) * wait - (own if scene.overlap else 0.0)
    return max(site.work / target_s, speed + max(0.0, spread) / target_s) / speed


def _pools(scene: Scene, ranks: list[int], groups: Groups, widths: Widths) -> list[Pool]:
    pools, at = [], 0
    for group, width in zip(groups, widths, strict=True):
        pools.append(Pool(scene, ranks[at : at + width], group))
        at += width
    return pools + [Pool(scene, [r], []) for r in ranks[at:]]


def _widths(scene: Scene, site: Site, groups: Groups, target_s: float) -> list[tuple[float, Widths]]:
    """Widths of the groups' runs with an estimate of the site's time, for all that fit the site."""
    size = len(site.ranks)
    unit = target_s * sum([scene.speed[r] for r in site.ranks]) / size
    cut = {j for group in groups for j in group}
    fillers = [j for j in site.members if j not in cut]
    attention = sum([scene.attention[j] for j in fillers]) if scene.overlap else 0.0
    ratio = attention / (sum([scene.work[j] for j in fillers]) + 1e-30)
    longest = scene.work[fillers[0]] / unit if fillers else 0.0
    choices = []
    for group in groups:
        need = sum([scene.work[j] for j in group]) / unit
        least = max(2, floor(need))
        tops = range(least, min(size, ceil(need) + (WIDER if scene.small else WIDER // 2)) + 1)
        choices.append([(w, _wait(scene, group, w), need) for w in tops])
    if any(not c for c in choices):
        return []
    out: list[tuple[float, tuple[int, ...]]] = []
    stack: list[tuple[int, tuple[int, ...], int, float, float, float]] = [(0, (), 0, 0.0, 0.0, 1.0)]
    while stack:
        k, widths, used, exposed, hidden, worst = stack.pop()
        if k == len(groups):
            spread = exposed - min(hidden, attention)
            last = longest if used < size else 0.0
            out.append((max(worst, min(last, STRETCH), 1 + spread / (unit * size)), widths))
            continue
        rest = sum([c[0][0] for c in choices[k + 1 :]])
        for w, wait, need in choices[k]:
            if used + w + rest > size:
                break
            room = max(0.0, w - need) * unit * ratio
            time = need / w + max(0.0, wait - room / w) / unit
            hide = min(room, w * wait)
            stack.append((k + 1, (*widths, w), used + w, exposed + w * wait, hidden + hide, max(worst, time)))
    return out


def _wait(scene: Scene, group: list[int], width: int) -> float:
    """Exchange of a group over a run of ranks of one node: all anchors wide, or in a chain. Seconds."""
    wide = even_wait(scene, sum([scene.tokens[j] for j in group]), width, 1)
    if len(group) == 1:
        return wide
    return min(wide, 1.15 * chain_wait(scene, group, list(range(width)), 1))
