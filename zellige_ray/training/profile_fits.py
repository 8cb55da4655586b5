"""From timings to curves: what repeats say, and what captions and pieces add to a single piece without them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from zellige_ray.placement import ModelPreset
from zellige_ray.placement.curves import Curve, fit_curve, rise
from zellige_ray.placement.step_curves import CopyWork, KernelWork, TokenWork
from zellige_ray.training.profile_blocks import TEXT, BlockTimes, Shape
from zellige_ray.training.profile_pace import usual

VARIED, TEXTS = 128, (64, 256)  # captions of a piece of so many tokens
COPIED = (16, 128, 1024, 4096)  # tokens of a cut sequence


def token_work(name: str, blocks: Mapping[Shape, list[BlockTimes]], field: str, reading_s: float = 0.0) -> TokenWork:
    """The curves of one figure: of one piece by tokens, what captions add, what pieces add."""
    middle = {shape: usual([getattr(t, field) for t in times]) for shape, times in blocks.items()}
    single = {float(s.total): v for s, v in middle.items() if s.text == TEXT and s.pieces <= 1 and s.tokens != VARIED}
    tokens = fit_curve(name, single)
    worded = {float(s.text): v for s, v in middle.items() if s.pieces == 1 and s.tokens == VARIED}
    text = rise(f"{name}, captions", worded)
    many = {1.0: 0.0}
    for s, v in middle.items():
        if s.pieces > 1:
            extra = v - float(tokens(s.total)) - float(text(s.pieces * s.text))
            many[float(s.pieces)] = max(0.0, extra) + reading_s * (s.pieces - 1)
    if len(many) == 1:
        many[2.0] = reading_s
    pieces = rise(f"{name}, pieces", many)
    tokens = Curve(tokens.x, tuple(y + (reading_s if x > 0 else 0.0) for x, y in zip(tokens.x, tokens.y, strict=True)))
    return TokenWork(tokens, text, pieces)


def without(whole: TokenWork, part: TokenWork) -> TokenWork:
    """Backward without the recomputation that runs inside it; at least as much as half of it."""
    curves = []
    for a, b in ((whole.tokens, part.tokens), (whole.text, part.text), (whole.pieces, part.pieces)):
        left = [max(y / 2, y - float(b(x))) for x, y in zip(a.x, a.y, strict=True)]
        curves.append(Curve(a.x, tuple(itertools.accumulate(left, max))))
    return TokenWork(*curves)


def nothing() -> TokenWork:
    nothing = Curve((0.0,), (0.0,))
    return TokenWork(nothing, nothing, nothing)


def copy_work(runs: Sequence[Mapping[int, tuple[float, int, int]]], call_s: float) -> CopyWork:
    middle = {n: usual([run[n][0] for run in runs]) for n in COPIED}
    num_bytes = {n: float(runs[0][n][1]) for n in COPIED}
    least, rectangles = middle[COPIED[0]], runs[0][COPIED[0]][2]
    rectangle_s = least / rectangles
    added = {0.0: 0.0, **{num_bytes[n]: max(0.0, middle[n] - rectangle_s * runs[0][n][2]) for n in COPIED[1:]}}
    return CopyWork(rise("packing", added), rectangle_s, call_s)


def in_place(
    blocks: Mapping[Shape, Sequence[BlockTimes]], whole: KernelWork, model: ModelPreset
) -> tuple[KernelWork, float]:
    """The kernels as they are inside of a layer, where caches are cold, by the longer half of single pieces; and what
    attention of a layer takes beside them in each pass, by the shortest one. Units: seconds.

    whole: the kernels alone.
    """
    heads, joint = model.heads, model.text == "joint"
    shapes = sorted((s for s in blocks if s.pieces == 1 and s.text == TEXT), key=lambda s: s.tokens)
    took = [usual([t.attention_s for t in blocks[s]]) for s in shapes]
    alone = []
    for s in shapes:
        length = s.tokens + (s.text if joint else 0)
        segments = [(heads, length, length)] + ([] if joint else [(heads, s.tokens, s.text)])
        forward_s, backward_s = whole.seconds(segments, len(segments))
        alone.append(model.forwards * forward_s + backward_s)
    beside_s = max(0.0, took[0] - alone[0])
    half = len(shapes) // 2
    inside_s = sum(took[half:]) - len(took[half:]) * beside_s
    return (whole.scaled(inside_s / sum(alone[half:])) if inside_s > 0 else whole), beside_s / (model.forwards + 1)
