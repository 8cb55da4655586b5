"""A sequence: what the planner knows of one sample, which is its lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TextMode = Literal["joint", "cross"]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sample of a batch, by its lengths.

    tokens: visual tokens. text_tokens: caption tokens. weight: factor of its loss.
    Lengths are checked where they enter (`placement.batch.read_batch`), not here.
    """

    id: str
    tokens: int
    text_tokens: int = 0
    weight: float = 1.0

    def length(self, text: TextMode) -> int:
        """Attention length: visual tokens, plus the text where both attend jointly (MMDiT)."""
        return self.tokens + self.text_tokens if text == "joint" else self.tokens
