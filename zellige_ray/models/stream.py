"""Stream: one packed batch on its way through a model, with the dummy tokens that keep its shape sound.

A rank without tokens still runs every layer, a Conv3d refuses an empty input, and a stream of 2 or 6 tokens could be taken for a
modulation table: so a stream has at least `MIN_TOKENS` tokens. Dummies follow the real ones, take part in no attention, and are
cut off from the output; their gradients are zero.

Legend: T packed tokens, N heads, H head dim, L caption tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zellige_ray.attention import AttentionEngine
from zellige_ray.models.adapter import Packed, with_empty_captions
from zellige_ray.models.rows import MIN_TOKENS, TokenIndex


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The fields of `Packed`, padded; and the attention of its real tokens."""

    tokens_TCphw: Tensor
    positions_T3: Tensor
    timestep_R: Tensor
    text_LD: Tensor
    text_lengths: tuple[int, ...]
    index: TokenIndex
    num_tokens: int
    engine: AttentionEngine

    def attend(self, q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor) -> Tensor:
        """Self-attention of the real tokens; zeros for dummies."""
        n = self.num_tokens
        return self._padded(self.engine.attend(q_TNH[:n], k_TNH[:n], v_TNH[:n]), q_TNH)

    def cross(self, q_TNH: Tensor, k_LNH: Tensor, v_LNH: Tensor) -> Tensor:
        """Attention of the real tokens to their captions; zeros for dummies."""
        return self._padded(self.engine.cross(q_TNH[: self.num_tokens], k_LNH, v_LNH, self.text_lengths), q_TNH)

    def real(self, x_TX: Tensor) -> Tensor:
        """Without the dummies."""
        return x_TX[: self.num_tokens]

    def _padded(self, o_TNH: Tensor, like_TNH: Tensor) -> Tensor:
        missing = like_TNH.shape[0] - o_TNH.shape[0]
        return torch.cat((o_TNH, o_TNH.new_zeros(missing, *o_TNH.shape[1:]))) if missing else o_TNH


def make_stream(packed: Packed, engine: AttentionEngine) -> Stream:
    """The stream of a packed batch; dummies take a row of their own, of timestep 0."""
    T = packed.tokens_TCphw.shape[0]
    text_LD, text_lengths = with_empty_captions(packed.text_LD, packed.text_lengths)
    tokens, positions, row_T, timestep_R = packed.tokens_TCphw, packed.positions_T3, packed.row_T, packed.timestep_R
    missing = max(0, MIN_TOKENS - T)
    if missing:
        tokens = torch.cat((tokens, tokens.new_zeros(missing, *tokens.shape[1:])))
        positions = torch.cat((positions, positions.new_zeros(missing, 3)))
        row_T = torch.cat((row_T, row_T.new_full((missing,), timestep_R.shape[0])))
        timestep_R = torch.cat((timestep_R, timestep_R.new_zeros(1)))
    return Stream(tokens, positions, timestep_R, text_LD, text_lengths, TokenIndex.of(row_T), T, engine)
