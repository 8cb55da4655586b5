"""Stream: one packed batch on its way through a model, with the dummy tokens that keep its shape sound.

A rank without tokens still runs every layer, a Conv3d refuses an empty input, a stream of 2 or 6 tokens could be taken
for a modulation table, and visual and text streams of equal length for each other: so a stream has at least
`MIN_TOKENS` tokens and the two lengths differ. Dummies follow the real tokens, take part in no attention and are cut
off from the output; their gradients are zero.

Legend: T packed visual tokens, S owned caption tokens (joint models), N heads, H head dim, L tokens of whole captions,
R rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zellige_ray.attention import AttentionEngine
from zellige_ray.attention.layer import Memo
from zellige_ray.errors import ModelError
from zellige_ray.models.adapter import Packed, with_empty_captions
from zellige_ray.models.rows import MIN_TOKENS, TokenIndex


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """The text half of a joint model's stream.

    text_SD, places_S: owned caption tokens and their places in their captions, padded. num_tokens: without dummies.
    to_packed, to_stream: gathers between the module's order (all text, all visual or the other way round) and the
    packed order.
    """

    text_SD: Tensor
    places_S: Tensor
    num_tokens: int
    to_packed: Tensor
    to_stream: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The fields of `Packed`, padded, and the attention of its real tokens. indexes: token -> row, by stream length."""

    packed: Packed
    tokens_TCphw: Tensor
    positions_T3: Tensor
    timestep_R: Tensor
    text_LD: Tensor
    text_lengths: tuple[int, ...]
    indexes: Mapping[int, TokenIndex]
    num_tokens: int
    engine: AttentionEngine
    joint: Joint | None = None

    @property
    def visual(self) -> TokenIndex:
        """Visual token -> row, dummies included."""
        return self.indexes[self.tokens_TCphw.shape[0]]

    @property
    def captions(self) -> Joint:
        """The text half; ModelError where the batch was packed for a cross-attention model."""
        if self.joint is None:
            raise ModelError("this model attends jointly to its text: pack text_spans and piece_rows")
        return self.joint

    @property
    def grids(self) -> tuple[tuple[int, int, int], ...]:
        """(frames, rows, columns) of each piece's sequence."""
        if self.packed.grids is None:
            raise ModelError("this model's positions depend on the grid of each sequence: pack grids")
        return self.packed.grids

    @property
    def visual_lengths(self) -> tuple[int, ...]:
        """Visual tokens per piece."""
        spans = self.packed.text_spans or ((0, 0),) * len(self.packed.piece_lengths)
        return tuple(n - (b - a) for n, (a, b) in zip(self.packed.piece_lengths, spans, strict=True))

    def attend(self, q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, memo: Memo | None = None) -> Tensor:
        """Self-attention of the real visual tokens; zeros for dummies."""
        n = self.num_tokens
        return _padded(self.engine.attend(q_TNH[:n], k_TNH[:n], v_TNH[:n], memo), q_TNH.shape[0])

    def cross(self, q_TNH: Tensor, k_LNH: Tensor, v_LNH: Tensor) -> Tensor:
        """Attention of the real visual tokens to their captions; zeros for dummies."""
        return _padded(self.engine.cross(q_TNH[: self.num_tokens], k_LNH, v_LNH, self.text_lengths), q_TNH.shape[0])

    def attend_jointly(self, q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, memo: Memo | None = None) -> Tensor:
        """Attention of all real tokens, operands and result in the module's order; zeros for dummies."""
        joint = self.captions
        q, k, v = (_Select.apply(x, joint.to_packed, joint.to_stream) for x in (q_TNH, k_TNH, v_TNH))  # type: ignore[no-untyped-call]
        out: Tensor = _Select.apply(self.engine.attend(q, k, v, memo), joint.to_stream, joint.to_packed)  # type: ignore[no-untyped-call]
        return out

    def attend_within_pieces(self, q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor) -> Tensor:
        """Attention of visual tokens among themselves in a joint model; only of whole sequences."""
        self.check_whole("attends to visual tokens only, beside its joint attention")
        n = self.num_tokens
        lengths = [(t, t) for t in self.visual_lengths]
        return _padded(self.engine.local(q_TNH[:n], k_TNH[:n], v_TNH[:n], lengths), q_TNH.shape[0])

    def check_whole(self, why: str) -> None:
        """ModelError unless every piece is a whole sequence."""
        for n, (f, h, w) in zip(self.visual_lengths, self.grids, strict=True):
            if n != f * h * w:
                raise ModelError(
                    f"a sequence of {f * h * w} tokens is cut here to {n}, but this model {why}: "
                    "plan it with max_degree 1"
                )

    def real(self, x_TX: Tensor) -> Tensor:
        """Without the dummies."""
        return x_TX[: self.num_tokens]


def make_stream(packed: Packed, engine: AttentionEngine, order: str | None = None) -> Stream:
    """The stream of a packed batch; dummies take a row of their own, of timestep 0. order: of a joint model, "txt" or
    "img" first.
    """
    T, R = packed.tokens_TCphw.shape[0], packed.timestep_R.shape[0]
    tokens, positions, row_T = packed.tokens_TCphw, packed.positions_T3, packed.row_T
    if order is None:
        text_LD, text_lengths = with_empty_captions(packed.text_LD, packed.text_lengths)
        missing, num_text = max(0, MIN_TOKENS - T), 0
    else:
        text_LD, text_lengths = packed.text_LD, packed.text_lengths
        missing, num_text = max(0, MIN_TOKENS - T), sum(b - a for a, b in packed.text_spans or ())
    padded = _extend(tokens, missing)
    indexes = {T + missing: TokenIndex.of(_extend(row_T, missing, R))}
    joint = None
    if order is not None:
        joint, text_index = _joint(packed, order, T + missing, num_text, R)
        visual_index, S = indexes[T + missing], joint.text_SD.shape[0]
        halves = (text_index, visual_index) if order == "txt" else (visual_index, text_index)
        indexes |= {S: text_index, S + T + missing: TokenIndex.of(torch.cat([half.row_T for half in halves]))}
    timestep_R = _extend(packed.timestep_R, 1)
    return Stream(
        packed, padded, _extend(positions, missing), timestep_R, text_LD, text_lengths, indexes, T, engine, joint
    )


def per_row(values_RX: Tensor | None, like: Tensor, width: int, num_rows: int) -> Tensor:
    """Values of every row of a stream, the dummies' included; zeros where none were given."""
    if values_RX is None:
        return like.new_zeros(num_rows, width)
    if values_RX.shape[1] != width:
        raise ModelError(f"packed vectors are {values_RX.shape[1]} wide, the model takes {width}")
    return _extend(values_RX.to(like.dtype), num_rows - values_RX.shape[0])


def _joint(packed: Packed, order: str, num_visual: int, S: int, dummy_row: int) -> tuple[Joint, TokenIndex]:
    if packed.text_spans is None or packed.piece_rows is None:
        raise ModelError("this model attends jointly to its text: pack text_spans and piece_rows")
    missing = max(0, MIN_TOKENS - S)
    missing += S + missing == num_visual
    spans = packed.text_spans
    rows: list[int] = []
    places: list[int] = []
    packed_order: list[int] = []
    captions = torch.split(packed.text_LD, list(packed.text_lengths)) if packed.text_lengths else ()
    text_base, visual_base = (0, S + missing) if order == "txt" else (num_visual, 0)
    at_text = at_visual = 0
    for (start, stop), length, row in zip(spans, packed.piece_lengths, packed.piece_rows, strict=True):
        n = length - (stop - start)
        text = range(text_base + at_text, text_base + at_text + stop - start)
        visual = range(visual_base + at_visual, visual_base + at_visual + n)
        packed_order += [*text, *visual] if order == "txt" else [*visual, *text]
        places += range(start, stop)
        rows += [row] * (stop - start)
        at_text, at_visual = at_text + stop - start, at_visual + n
    owned = [caption[start:stop] for caption, (start, stop) in zip(captions, spans, strict=True)]
    device = packed.text_LD.device
    to_packed = torch.tensor(packed_order, dtype=torch.int64, device=device)
    to_stream = torch.full((S + missing + num_visual,), len(packed_order), dtype=torch.int64, device=device)
    to_stream[to_packed] = torch.arange(len(packed_order), device=device)
    text_SD = _extend(torch.cat(owned) if owned else packed.text_LD[:0], missing)
    places_S = torch.tensor([*places, *[0] * missing], dtype=torch.int64, device=device)
    row_S = torch.tensor([*rows, *[dummy_row] * missing], dtype=torch.int64, device=device)
    return Joint(text_SD, places_S, S, to_packed, to_stream), TokenIndex.of(row_S)


class _Select(torch.autograd.Function):
    """Rows by index, one past the end for a zero row; backward is the gather by the inverse index, not a
    scatter-add.
    """

    @staticmethod
    def forward(ctx: Any, x_TNH: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return _select(x_TNH, index)

    @staticmethod
    def backward(ctx: Any, grad_TNH: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return _select(grad_TNH, inverse), None, None


def _select(x_TNH: Tensor, index: Tensor) -> Tensor:
    return torch.cat((x_TNH, x_TNH.new_zeros(1, *x_TNH.shape[1:]))).index_select(0, index)


def _padded(o_TNH: Tensor, length: int) -> Tensor:
    missing = length - o_TNH.shape[0]
    return torch.cat((o_TNH, o_TNH.new_zeros(missing, *o_TNH.shape[1:]))) if missing else o_TNH


def _extend(x_TX: Tensor, missing: int, value: float = 0) -> Tensor:
    return torch.cat((x_TX, x_TX.new_full((missing, *x_TX.shape[1:]), value))) if missing else x_TX
