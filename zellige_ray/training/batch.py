"""From a layout and the cache to a rank's packed buffer: noisy tokens, targets, weights, captions.

Plan first, load after: a rank reads only the latent frames that its token intervals touch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zellige_ray.attention.layout import RankLayout
from zellige_ray.config import LossConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.data.index import SampleMeta
from zellige_ray.models.adapter import ModelAdapter, Packed
from zellige_ray.models.specs import ModelSpec
from zellige_ray.training.loss import token_weights
from zellige_ray.training.noise import timestep, token_noise


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one round: the model's input, what it should say, and what each token counts."""

    packed: Packed
    target_TCphw: Tensor
    weight_T: Tensor


@dataclass(frozen=True, slots=True)
class Loader:
    """Builds shares. dtype, device: of the tensors."""

    cache: LatentCache
    text_dim: int
    adapter: ModelAdapter
    spec: ModelSpec
    loss: LossConfig
    seed: int
    dtype: torch.dtype
    device: torch.device

    def weights(self, samples: Sequence[SampleMeta]) -> dict[str, float]:
        """Token weights of a global batch; they sum to 1 over all tokens of all ranks and rounds."""
        lengths = {s.id: self.spec.tokens(s.latent_shape) for s in samples}
        return token_weights(samples, lengths, self.loss.weighting)

    def share(
        self,
        layout: RankLayout,
        metas: Sequence[SampleMeta],
        pass_: int,
        weights: Mapping[str, float],
        timestep_of: Callable[[str], float] | None = None,
    ) -> Share:
        """The share that `layout` gives this rank. metas: those of the round, in its order."""
        width = self.spec.latent_channels * self.spec.patch[0] * self.spec.patch[1] * self.spec.patch[2]
        noisy, targets, positions, rows, captions, weight = [], [], [], [], [], []
        row_of: dict[int, int] = {}
        times: list[float] = []
        for piece in layout.pieces:
            meta, count = metas[piece.sequence], piece.stop - piece.start
            if piece.sequence not in row_of:
                row_of[piece.sequence] = len(times)
                drawn = timestep_of(meta.id) if timestep_of else timestep(self.seed, pass_, meta.id, self.loss)
                times.append(drawn)
            t = times[row_of[piece.sequence]]
            clean = self._clean(meta, piece.start, piece.stop)
            drawn_noise = token_noise(self.seed, pass_, meta.id, piece.start, piece.stop, width)
            noise = torch.from_numpy(drawn_noise).to(self.dtype).view_as(clean)
            noisy.append((1 - t) * clean + t * noise)
            targets.append(noise - clean)
            positions.append(self.adapter.positions(meta.latent_shape, piece.start, piece.stop))
            rows.append(torch.full((count,), row_of[piece.sequence], dtype=torch.int64))
            captions.append(self.cache.read_text(meta).to(self.dtype))
            weight.append(torch.full((count,), weights[meta.id], dtype=torch.float64))
        return self._join(noisy, targets, positions, rows, captions, weight, times)

    def _clean(self, meta: SampleMeta, start: int, stop: int) -> Tensor:
        """Latent tokens [start, stop), read from the frames they lie in."""
        frames, height, width = self.spec.grid(meta.latent_shape)
        per_frame, depth = height * width, self.spec.patch[0]
        first, last = start // per_frame, min(frames, -(-stop // per_frame))
        latents = self.cache.read_frames(meta, first * depth, last * depth).to(self.dtype)
        return self.adapter.tokens(latents, start - first * per_frame, stop - first * per_frame)

    def _join(
        self,
        noisy: list[Tensor],
        targets: list[Tensor],
        positions: list[Tensor],
        rows: list[Tensor],
        captions: list[Tensor],
        weight: list[Tensor],
        times: list[float],
    ) -> Share:
        patch = (self.spec.latent_channels, *self.spec.patch)
        empty = torch.empty((0, *patch), dtype=self.dtype)
        packed = Packed(
            tokens_TCphw=torch.cat([empty, *noisy]).to(self.device),
            positions_T3=torch.cat([torch.empty((0, 3), dtype=torch.int64), *positions]).to(self.device),
            row_T=torch.cat([torch.empty(0, dtype=torch.int64), *rows]).to(self.device),
            timestep_R=torch.tensor(times, dtype=torch.float64 if self.dtype == torch.float64 else torch.float32).to(
                self.device
            ),
            text_LD=torch.cat([torch.empty((0, self.text_dim), dtype=self.dtype), *captions]).to(self.device),
            piece_lengths=tuple(len(x) for x in noisy),
            text_lengths=tuple(len(x) for x in captions),
        )
        return Share(
            packed,
            torch.cat([empty, *targets]).to(self.device),
            torch.cat([torch.empty(0, dtype=torch.float64), *weight]).to(self.device),
        )
