"""Batch: this rank's share of one round of a global batch, as a training loop sees it.

Legend: T local tokens, C channels, p h w patch sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from zellige_ray.attention.engine import AttentionEngine
from zellige_ray.training.batch import Share
from zellige_ray.training.loss import flow_matching_loss


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Give it to the prepared model. step: the one it belongs to. last: no other round of the step comes after it."""

    share: Share
    engine: AttentionEngine
    step: int
    epoch: int
    last: bool

    @property
    def tokens(self) -> Tensor:
        """Noisy tokens [T, C, p, h, w]: (1 - t) clean + t noise; noise and t are functions of (seed, pass, sample)."""
        return self.share.packed.tokens_TCphw

    @property
    def timestep(self) -> Tensor:
        """t of each token, [T, 1, 1, 1, 1]."""
        packed = self.share.packed
        return packed.timestep_R[packed.row_T].to(packed.tokens_TCphw.dtype).view(-1, 1, 1, 1, 1)

    @property
    def target(self) -> Tensor:
        """What the model should say: noise - clean."""
        return self.share.target_TCphw

    @property
    def noise(self) -> Tensor:
        """The noise in `tokens`."""
        return self.tokens + (1 - self.timestep) * self.target

    @property
    def clean(self) -> Tensor:
        """The latents without noise."""
        return self.tokens - self.timestep * self.target

    @property
    def weight(self) -> Tensor:
        """What each token counts, [T] float64; over all ranks and rounds they sum to 1."""
        return self.share.weight_T

    def loss(self, prediction: Tensor) -> Tensor:
        """Flow matching: this share's part of the loss of the global batch; parts are summed, not averaged."""
        return flow_matching_loss(prediction, self.target, self.weight)
