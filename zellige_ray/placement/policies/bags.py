"""Policy `bags`: KnapFormer's static disjoint groups, by a spec such as `bags:g1n8+g2n4`, or `bags:best` for a batch.

Longest sequence first into the group with the smallest load per rank among those that could hold it at all; every
sequence of a group is cut evenly over its ranks. A spec covers some ranks; the cluster is filled with copies of it.
"""

from __future__ import annotations

import re

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Round
from zellige_ray.placement.policies.cp import place_even
from zellige_ray.placement.timeline import time_round

Spec = tuple[tuple[int, int], ...]  # (ranks of a group, number of such groups), ascending


def place_bags(batch: Batch, cluster: Cluster, cost: CostModel, argument: str = "") -> Round:
    """The groups of the spec in the argument; `best` tries them all and takes the fastest by the timeline."""
    if argument == "best":
        rounds = (place_spec(batch, cluster, cost, spec) for spec in all_specs(cluster.world_size, cost.model.heads))
        return min(rounds, key=lambda r: round(time_round(r, cluster, cost).layer_s * 1e12))
    return place_spec(batch, cluster, cost, parse_spec(argument, cluster.world_size))


def place_spec(batch: Batch, cluster: Cluster, cost: CostModel, spec: Spec) -> Round:
    """Sequences dealt over the copies of the spec, then into the groups of each copy. Ranks are taken as equal."""
    size = sum(g * k for g, k in spec)
    copies = cluster.world_size // size
    work = (batch.linear_S + batch.attention_S).tolist()
    tokens = batch.tokens_S.tolist()
    ranks_of: list[tuple[int, ...]] = [()] * len(work)
    for copy in range(copies):
        mine = range(copy, len(work), copies)
        groups, at = [], copy * size
        for g, k in spec:
            for _ in range(k):
                groups.append(tuple(range(at, at + g)))
                at += g
        share = sum([work[j] for j in mine]) / size
        widest = len(groups[-1])
        fill = [0.0] * len(groups)
        for j in mine:
            able = [i for i, r in enumerate(groups) if share * len(r) >= work[j] and tokens[j] >= len(r)]
            if not able:
                able = [i for i, r in enumerate(groups) if len(r) == widest]
            i = min(able, key=fill.__getitem__)
            fill[i] += work[j] / len(groups[i])
            ranks_of[j] = groups[i]
    return place_even(batch, cost.model, ranks_of)


def parse_spec(text: str, world_size: int) -> Spec:
    """`g1n8+g2n4`: eight groups of one rank, four of two; raises PlanError unless copies of it fill the cluster."""
    parts = [re.fullmatch(r"g(\d+)n(\d+)", part) for part in text.split("+")]
    if not text or not all(parts):
        raise PlanError(f"bag spec {text!r} is not of the form g1n8+g2n4 (groups of g ranks, n of them), nor best")
    spec = tuple(sorted((int(m[1]), int(m[2])) for m in parts if m))
    size = sum(g * k for g, k in spec)
    if min(min(pair) for pair in spec) < 1 or size > world_size or world_size % size:
        raise PlanError(f"bag spec {text!r} covers {size} ranks, it must divide the {world_size} ranks of the cluster")
    return spec


def spec_text(spec: Spec) -> str:
    """The spec as text, the inverse of `parse_spec`."""
    return "+".join(f"g{g}n{k}" for g, k in spec)


def all_specs(world_size: int, heads: int) -> list[Spec]:
    """Specs of one or two group sizes that fill the cluster, and mixes of 1, 2, 4, 8 that fill 8 or 16 ranks."""
    sizes = [g for g in range(1, world_size + 1) if heads % g == 0]
    out: set[Spec] = set()
    for a in sizes:
        for k in range(1, world_size // a + 1):
            rest = world_size - a * k
            if rest == 0:
                out.add(((a, k),))
            out |= {tuple(sorted(((a, k), (b, rest // b)))) for b in sizes if rest and b != a and rest % b == 0}
    for size in (8, 16):
        if world_size % size == 0:
            out |= set(_mixes(size, heads))
    return sorted(out)


def _mixes(size: int, heads: int) -> list[Spec]:
    counts = np.array(np.meshgrid(*(np.arange(size // g + 1) for g in (1, 2, 4, 8)), indexing="ij")).reshape(4, -1).T
    rows = counts[counts @ np.array([1, 2, 4, 8]) == size].tolist()
    specs = [tuple((g, k) for g, k in zip((1, 2, 4, 8), row, strict=True) if k) for row in rows]
    return [spec for spec in specs if all(heads % g == 0 for g, _ in spec)]
