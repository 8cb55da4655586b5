"""Workloads: lengths of batches as public trainers draw them, every draw from a seed. A new one is a line in the dict.

Sources: KnapFormer's data codes (its simulator), the Open-Sora 2.0 bucket tables (configs/diffusion/train/stage1.py and
stage2.py), token counts of Wan 2.1 and HunyuanVideo at their sizes; the shares of the tails are assumptions.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from zellige_ray.errors import ConfigError
from zellige_ray.placement.sequence import Sequence

Lengths = list[tuple[int, int]]  # (visual tokens, text tokens)
Workload = Callable[[int, np.random.Generator], Lengths]


class Group(NamedTuple):
    """Ranks that draw alike: `ranks` of them, `batch` sequences of `tokens` each (before the jitter of a rank)."""

    ranks: int
    batch: int
    tokens: int


class Bucket(NamedTuple):
    """A bucket of a trainer: tokens of a latent frame (least, most), latent frames, keep probability, batch."""

    frame_tokens: tuple[int, int]
    frames: int
    keep: float
    batch: int


KNAP_JOINT = (
    Group(8, 4, 256), Group(2, 5, 1024), Group(2, 5, 4096), Group(4, 1, 16384),
    Group(1, 10, 1024), Group(3, 1, 4096), Group(8, 2, 6400), Group(4, 1, 25600),
)  # fmt: skip
KNAP_MIXED = (Group(16, 4, 256), Group(4, 5, 1024), Group(4, 5, 4096), Group(8, 1, 16384))
KNAP_LOWRES = (Group(32, 32, 256),)
WAN_TAIL = {256: 0.30, 1024: 0.15, 1560: 0.15, 3600: 0.10, 5292: 0.15, 20736: 0.08, 32760: 0.05, 75600: 0.02}
HUNYUAN_TAIL = {256: 0.25, 1024: 0.25, 8448: 0.2, 29040: 0.15, 67320: 0.1, 118800: 0.05}

# Tokens of one latent frame over the aspect ratios of a resolution.
AREA = {"256px": (250, 260), "768px": (2294, 2312), "1024px": (4080, 4116)}


def _frames(least: int, most: int) -> range:
    return range(least, most + 1, 4)


def _buckets(area: str, rows: list[tuple[range, float, int]]) -> list[Bucket]:
    return [Bucket(AREA[area], (f - 1) // 4 + 1, keep, batch) for frames, keep, batch in rows for f in frames]


OPENSORA2_STAGE1 = [
    *_buckets("256px", [(_frames(1, 1), 1.0, 45), (_frames(5, 33), 1.0, 12), (_frames(37, 65), 1.0, 6)]),
    *_buckets("256px", [(_frames(69, 97), 1.0, 4), (_frames(101, 129), 1.0, 3)]),
    *_buckets("768px", [(_frames(1, 1), 0.5, 13)]),
    *_buckets("1024px", [(_frames(1, 1), 0.5, 7)]),
]
OPENSORA2_STAGE2 = [
    *_buckets("256px", [(_frames(1, 1), 1.0, 130), (_frames(5, 33), 1.0, 14), (_frames(37, 65), 1.0, 10)]),
    *_buckets("256px", [(_frames(73, 97), 1.0, 7), (_frames(101, 129), 1.0, 6)]),
    *_buckets("768px", [(_frames(1, 1), 1.0, 38), (_frames(5, 33), 1.0, 6), (_frames(37, 65), 1.0, 4)]),
    *_buckets("768px", [(_frames(69, 97), 1.0, 3), (_frames(101, 129), 1.0, 2)]),
]


def from_groups(groups: tuple[Group, ...]) -> Workload:
    """Every rank of every group draws its batch; lengths of a rank share a jitter of 4 %. Copies fill the world."""

    def draw(world: int, rng: np.random.Generator) -> Lengths:
        size = sum(g.ranks for g in groups)
        out = []
        for _ in range(max(1, world // size)):
            for group in groups:
                for _ in range(group.ranks):
                    tokens = int(group.tokens * rng.uniform(0.96, 1.04))
                    out += [(tokens, int(rng.integers(0, 393))) for _ in range(group.batch)]
        if world >= size:
            return out
        kept = rng.choice(len(out), max(1, len(out) * world // size), replace=False)
        return [out[i] for i in sorted(kept.tolist())]

    return draw


def from_shares(shares: dict[int, float], per_rank: int) -> Workload:
    """`per_rank` independent draws for every rank from a table of lengths and shares, with a jitter of 4 %."""

    def draw(world: int, rng: np.random.Generator) -> Lengths:
        lengths = rng.choice(list(shares), per_rank * world, p=list(shares.values()))
        jitter = rng.uniform(0.96, 1.04, len(lengths))
        text = rng.integers(20, 393, len(lengths))
        return list(zip((lengths * jitter).astype(int).tolist(), text.tolist(), strict=True))

    return draw


def from_buckets(buckets: list[Bucket]) -> Workload:
    """Every rank draws one bucket by its keep probability, and its whole batch from it; 512 text tokens each."""

    def draw(world: int, rng: np.random.Generator) -> Lengths:
        keep = np.array([b.keep for b in buckets])
        out = []
        for k in rng.choice(len(buckets), world, p=keep / keep.sum()).tolist():
            bucket = buckets[k]
            areas = rng.integers(bucket.frame_tokens[0], bucket.frame_tokens[1] + 1, bucket.batch)
            out += [(area * bucket.frames, 512) for area in areas.tolist()]
        return out

    return draw


def _one_giant(world: int, rng: np.random.Generator) -> Lengths:
    return [(118800, 256)] + [(256, 30)] * (world - 1)


def _few(world: int, rng: np.random.Generator) -> Lengths:
    return [(n, 64) for n in rng.integers(2000, 60000, max(2, world // 2)).tolist()]


def _power_law(world: int, rng: np.random.Generator) -> Lengths:
    return [(int(min(120000.0, 256 * (1 - u) ** (-1 / 1.2))), 77) for u in rng.random(6 * world).tolist()]


def _two_point(world: int, rng: np.random.Generator) -> Lengths:
    return [(16384 if u < 0.2 else 256, 77) for u in rng.random(5 * world).tolist()]


workloads: dict[str, Workload] = {
    "knap-joint": from_groups(KNAP_JOINT),
    "knap-mixed": from_groups(KNAP_MIXED),
    "knap-lowres": from_groups(KNAP_LOWRES),
    "wan-tail": from_shares(WAN_TAIL, 8),
    "hunyuan-tail": from_shares(HUNYUAN_TAIL, 3),
    "one-giant": _one_giant,
    "few": _few,
    "power-law": _power_law,
    "two-point": _two_point,
    "opensora2-stage1": from_buckets(OPENSORA2_STAGE1),
    "opensora2-stage2": from_buckets(OPENSORA2_STAGE2),
}


def draw_batch(name: str, world_size: int, seed: int) -> tuple[Sequence, ...]:
    """A batch of a workload for a world size; raises ConfigError naming the nearest workload."""
    if name not in workloads:
        near = difflib.get_close_matches(name, sorted(workloads), n=1, cutoff=0.0)
        raise ConfigError(f"workload {name!r} is unknown, the nearest is {near[0]!r}, all: {', '.join(workloads)}")
    rng = np.random.default_rng([seed, world_size, *name.encode()])
    rows = workloads[name](world_size, rng)
    return tuple(Sequence(f"{name}-{seed}-{i}", tokens, text) for i, (tokens, text) in enumerate(rows))
