"""Stage one: which ranks of a site share its anchors, the sequences that are too long for a rank."""

from __future__ import annotations

from math import ceil, floor

from zellige_ray.placement.stages.nodes import Site
from zellige_ray.placement.stages.pool import Pool, even_wait
from zellige_ray.placement.stages.scene import Scene

Widths = tuple[int, ...]


def layouts(scene: Scene, site: Site, target_s: float, limit: int) -> list[tuple[float, list[Pool]]]:
    """The most promising ways to spread the site's anchors over its ranks; at least one. Ranks left are single.

    Ways: each anchor on a run of ranks of its own, of several widths, scored by a closed form; or all anchors in a
    chain over all ranks.
    """
    top = max([scene.speed[r] for r in site.ranks])
    anchors = [j for j in site.members if scene.work[j] > target_s * top * 1.0001] if len(site.ranks) > 1 else []
    if not anchors:
        return [(1.0, [Pool(scene, [r], []) for r in site.ranks])]
    if len(site.nodes) > 1:
        return [(1.0, [Pool(scene, site.ranks, anchors)])]
    options = sorted(_widths(scene, site, anchors, target_s))[: 0 if scene.full else limit]
    out = [(score, _pools(scene, site.ranks, anchors, widths)) for score, widths in options]
    if len(anchors) > 1 or not out:
        chain = Pool(scene, site.ranks, anchors)
        fillers = set(site.members).difference(anchors)
        spread = len(site.ranks) * chain.wait - sum([scene.attention[j] for j in fillers]) * scene.overlap
        out.append((max(site.work / target_s, chain.speed + max(0.0, spread) / target_s) / chain.speed, [chain]))
    return sorted(out, key=lambda x: x[0])


def _pools(scene: Scene, ranks: list[int], anchors: list[int], widths: Widths) -> list[Pool]:
    pools, at = [], 0
    for j, width in zip(anchors, widths, strict=True):
        pools.append(Pool(scene, ranks[at : at + width], [j]))
        at += width
    return pools + [Pool(scene, [r], []) for r in ranks[at:]]


def _widths(scene: Scene, site: Site, anchors: list[int], target_s: float) -> list[tuple[float, Widths]]:
    """Widths of the anchors' runs with an estimate of the site's time, for all that fit the site."""
    size = len(site.ranks)
    mean = sum([scene.speed[r] for r in site.ranks]) / size
    unit = target_s * mean
    fillers = [j for j in site.members if j not in set(anchors)]
    attention = sum([scene.attention[j] for j in fillers])
    filler_work = sum([scene.work[j] for j in fillers]) + 1e-30
    ratio = attention / filler_work
    choices = []
    for j in anchors:
        need = scene.work[j] / unit
        least = max(2, floor(need))
        choices.append([(w, even_wait(scene, scene.tokens[j], w, 1), need) for w in range(least, min(size, ceil(need) + 4) + 1)])
    out: list[tuple[float, Widths]] = []
    stack: list[tuple[int, tuple[int, ...], float, float, float]] = [(0, (), 0.0, 0.0, 0.0)]
    while stack:
        k, widths, exposed, hidden, worst = stack.pop()
        if k == len(anchors):
            spread = exposed - min(hidden, attention)
            out.append((max(worst, 1 + spread / (unit * size)), widths))
            continue
        rest = sum([c[0][0] for c in choices[k + 1 :]])
        for w, wait, need in choices[k]:
            if sum(widths) + w + rest > size:
                break
            room = max(0.0, w - need) * unit * ratio
            hide = min(room, w * wait)
            time = need / w + max(0.0, wait - room / w) / unit
            stack.append((k + 1, (*widths, w), exposed + w * wait, hidden + hide, max(worst, time)))
    return out
