"""The adapter protocol: everything a model must say about itself to run packed on several ranks.

Shapes: T packed local tokens, R rows of per-sequence values, L caption tokens of all pieces, C channels,
p h w patch sizes, D text width, F H W latent frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor, nn

from zellige_ray.errors import ModelError

if TYPE_CHECKING:
    from zellige_ray.attention import AttentionEngine
    from zellige_ray.config import ModelConfig

LatentShape = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """The local tokens of all pieces of one rank, in the order of `RankLayout.pieces`.

    tokens_TCphw: patches. positions_T3: int64 place in the grid (frame, row, column). row_T: int64, token -> row of
    per-sequence values. timestep_R: in [0, 1], 1 is noise. text_LD: each piece's whole caption, concatenated.
    piece_lengths, text_lengths: tokens and caption tokens per piece; a caption of 0 tokens is allowed. T may be 0.
    Joint models (text and visual tokens attend together) also need: text_spans, the caption tokens that each piece owns
    (piece_lengths then count visual and owned caption tokens), and piece_rows, the row of each piece's text. grids:
    (frames, rows, columns) of each piece's sequence, for models whose positions depend on it. pooled_RP: one vector per
    row for models that want one (zeros where absent). labels_R: class per row (the model's null class where absent).
    """

    tokens_TCphw: Tensor
    positions_T3: Tensor
    row_T: Tensor
    timestep_R: Tensor
    text_LD: Tensor
    piece_lengths: tuple[int, ...]
    text_lengths: tuple[int, ...]
    text_spans: tuple[tuple[int, int], ...] | None = None
    piece_rows: tuple[int, ...] | None = None
    grids: tuple[tuple[int, int, int], ...] | None = None
    pooled_RP: Tensor | None = None
    labels_R: Tensor | None = None

    def __post_init__(self) -> None:
        owned = sum(stop - start for start, stop in self.text_spans or ())
        T, L = sum(self.piece_lengths) - owned, sum(self.text_lengths)
        if len(self.piece_lengths) != len(self.text_lengths):
            raise ModelError(
                f"{len(self.piece_lengths)} pieces but {len(self.text_lengths)} captions in a packed batch"
            )
        for name, tensor, rows in (
            ("tokens", self.tokens_TCphw, T),
            ("positions", self.positions_T3, T),
            ("row", self.row_T, T),
            ("text", self.text_LD, L),
        ):
            if tensor.shape[0] != rows:
                raise ModelError(f"packed batch: {name} has {tensor.shape[0]} rows, its pieces have {rows}")


class BoundModel(Protocol):
    """A module with its hooks in place: call it with a packed batch and an engine."""

    module: nn.Module
    blocks: list[nn.Module]

    def __call__(self, packed: Packed, engine: AttentionEngine) -> Tensor:
        """Prediction (velocity) per token, shaped like `packed.tokens_TCphw`.

        Call it on every rank, also with no token, and run backward on every rank: both exchange with neighbours.
        """
        ...


class ModelAdapter(Protocol):
    """The tensor side of a model; its driver side is its `ModelSpec`."""

    name: str

    def make(self, config: ModelConfig, text_dim: int) -> nn.Module:
        """A module of the configured size, weights as they come; on the meta device where that is torch's default."""
        ...

    def build(
        self, config: ModelConfig, text_dim: int, seed: int, dtype: torch.dtype, device: torch.device | str
    ) -> nn.Module:
        """A new module; the same seed gives the same weights on every rank, up to the rounding of `dtype`."""
        ...

    def bind(self, module: nn.Module, checkpointing: Literal["none", "full", "attention"] | None = None) -> BoundModel:
        """Hooks on the instance, once; class, weights and state-dict keys stay as they are.

        checkpointing: default as configured at `build`; `attention` keeps attention results: nothing is exchanged
        twice.
        """
        ...

    def tokens(self, latents_CFHW: Tensor, start: int, stop: int) -> Tensor:
        """Patches [stop - start, C, pt, ph, pw] of a token interval, row-major over frames, rows, columns."""
        ...

    def untokens(self, tokens_TCphw: Tensor, latent_shape: LatentShape) -> Tensor:
        """Latents of all tokens of one sequence; the inverse of `tokens`."""
        ...

    def positions(self, latent_shape: LatentShape, start: int, stop: int) -> Tensor:
        """int64 [stop - start, 3]: frame, row and column of each token in the grid."""
        ...


def patchify(latents_CFHW: Tensor, patch: tuple[int, int, int], start: int, stop: int) -> Tensor:
    """Patches [stop - start, C, pt, ph, pw] of latents; only the frames that hold the interval are touched."""
    C, F, H, W = latents_CFHW.shape
    pt, ph, pw = patch
    h, w = H // ph, W // pw
    if not 0 <= start <= stop <= (F // pt) * h * w:
        raise ModelError(f"token interval [{start}, {stop}) is outside of a sequence of {(F // pt) * h * w} tokens")
    if start == stop:
        return latents_CFHW.new_zeros(0, C, pt, ph, pw)
    f0, f1 = start // (h * w), -(-stop // (h * w))
    frames = latents_CFHW[:, f0 * pt : f1 * pt].reshape(C, f1 - f0, pt, h, ph, w, pw)
    tokens = frames.permute(1, 3, 5, 0, 2, 4, 6).reshape(-1, C, pt, ph, pw)
    return tokens[start - f0 * h * w : stop - f0 * h * w].contiguous()


def unpatchify(tokens_TCphw: Tensor, latent_shape: LatentShape) -> Tensor:
    """Latents [C, F, H, W] of all tokens of a sequence."""
    _C, F, H, W = latent_shape
    T, channels, pt, ph, pw = tokens_TCphw.shape
    f, h, w = F // pt, H // ph, W // pw
    if f * h * w != T:
        raise ModelError(f"{T} tokens do not fill latents {latent_shape}, which have {f * h * w}")
    return tokens_TCphw.reshape(f, h, w, channels, pt, ph, pw).permute(3, 0, 4, 1, 5, 2, 6).reshape(channels, F, H, W)


def grid_positions(grid: tuple[int, int, int], start: int, stop: int) -> Tensor:
    """int64 [stop - start, 3]: frame, row and column of row-major tokens."""
    _, h, w = grid
    index_T = torch.arange(start, stop)
    return torch.stack((index_T // (h * w), index_T // w % h, index_T % w), dim=1)


def with_empty_captions(text_LD: Tensor, text_lengths: Sequence[int]) -> tuple[Tensor, tuple[int, ...]]:
    """Captions with one zero token in place of each empty one: cross-attention needs something to attend to."""
    if all(text_lengths):
        return text_LD, tuple(text_lengths)
    zero_1D = text_LD.new_zeros(1, text_LD.shape[1])
    parts = [part if len(part) else zero_1D for part in torch.split(text_LD, list(text_lengths))]
    return torch.cat(parts) if parts else text_LD, tuple(max(n, 1) for n in text_lengths)


def joint_parts(order: str, start: int, stop: int, visual: int, text: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Visual tokens and caption tokens of a piece [start, stop) of a joint sequence.

    order: "txt" or "img", whichever comes first in the model's joint order. visual, text: tokens of the whole sequence.
    """
    if order not in ("txt", "img") or not 0 <= start <= stop <= visual + text:
        raise ModelError(
            f"piece [{start}, {stop}) of a joint sequence ({order} first) of {visual} visual and {text} caption tokens"
        )
    first = text if order == "txt" else visual
    head, tail = (min(start, first), min(stop, first)), (max(start - first, 0), max(stop - first, 0))
    return (tail, head) if order == "txt" else (head, tail)
