"""From a layout and the cache to a rank's packed buffer: noisy tokens, targets, weights, captions.

Plan first, load after: a rank reads only the latent frames that its token intervals touch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from zellige_ray.attention.layout import Piece, RankLayout
from zellige_ray.config import LossConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.data.index import SampleMeta
from zellige_ray.models.adapter import ModelAdapter, Packed, joint_parts
from zellige_ray.models.specs import ModelSpec
from zellige_ray.training.loss import token_weights
from zellige_ray.training.noise import timestep, token_noise


class Span(NamedTuple):
    """What a piece holds of its sequence: visual tokens [start, stop), and caption tokens where both attend jointly."""

    sample: SampleMeta
    start: int
    stop: int
    text: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one round: the model's input, what it should say, and what each visual token counts.

    spans: of the pieces, in packed order.
    """

    packed: Packed
    spans: tuple[Span, ...]
    target_TCphw: Tensor
    weight_T: Tensor


@dataclass(frozen=True, slots=True)
class Loader:
    """Builds shares. text_dim: width of captions. dtype, device: of the tensors."""

    cache: LatentCache
    text_dim: int
    adapter: ModelAdapter
    spec: ModelSpec
    loss: LossConfig
    seed: int
    dtype: torch.dtype
    device: torch.device

    def weights(self, samples: Sequence[SampleMeta]) -> dict[str, float]:
        """Token weights of a global batch; they sum to 1 over all visual tokens of all ranks and rounds."""
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
        """The share that `layout` gives this rank.

        metas: those of the round, in its order. timestep_of: instead of the drawn timesteps. Raises DataError for a
        sample that can't be read.
        """
        spans = tuple(self._span(metas[piece.sequence], piece) for piece in layout.pieces)
        row_of = {name: row for row, name in enumerate(dict.fromkeys(span.sample.id for span in spans))}
        times = {
            name: timestep_of(name) if timestep_of else timestep(self.seed, pass_, name, self.loss) for name in row_of
        }
        noisy, targets = [], []
        for span in spans:
            t, clean = times[span.sample.id], self._clean(span)
            noise = self._noise(span, pass_).view_as(clean)
            noisy.append((1 - t) * clean + t * noise)
            targets.append(noise - clean)
        patch = (self.spec.latent_channels, *self.spec.patch)
        empty = torch.empty((0, *patch), dtype=self.dtype)
        counts = torch.tensor([span.stop - span.start for span in spans], dtype=torch.int64)
        rows = torch.tensor([row_of[span.sample.id] for span in spans], dtype=torch.int64)
        weight = torch.tensor([weights[span.sample.id] for span in spans], dtype=torch.float64)
        packed = self._packed(layout, spans, torch.cat([empty, *noisy]), rows.repeat_interleave(counts), rows, times)
        return Share(
            packed,
            spans,
            torch.cat([empty, *targets]).to(self.device),
            weight.repeat_interleave(counts).to(self.device),
        )

    def _span(self, meta: SampleMeta, piece: Piece) -> Span:
        if self.spec.joint is None:
            return Span(meta, piece.start, piece.stop, (0, 0))
        visual = self.spec.tokens(meta.latent_shape)
        seen, text = joint_parts(self.spec.joint, piece.start, piece.stop, visual, meta.text_tokens)
        return Span(meta, *seen, text)

    def _clean(self, span: Span) -> Tensor:
        """Latent tokens of a span, read from the frames they lie in; none are read for a span of captions alone."""
        if span.start == span.stop:
            return torch.empty((0, self.spec.latent_channels, *self.spec.patch), dtype=self.dtype)
        frames, height, width = self.spec.grid(span.sample.latent_shape)
        per_frame, depth = height * width, self.spec.patch[0]
        first, last = span.start // per_frame, min(frames, -(-span.stop // per_frame))
        latents = self.cache.read_frames(span.sample, first * depth, last * depth).to(self.dtype)
        return self.adapter.tokens(latents, span.start - first * per_frame, span.stop - first * per_frame)

    def _noise(self, span: Span, pass_: int) -> Tensor:
        drawn = token_noise(self.seed, pass_, span.sample.id, span.start, span.stop, self.spec.patch_values)
        return torch.from_numpy(drawn).to(self.dtype)

    def _packed(
        self,
        layout: RankLayout,
        spans: Sequence[Span],
        tokens_TCphw: Tensor,
        row_T: Tensor,
        row_P: Tensor,
        times: Mapping[str, float],
    ) -> Packed:
        shapes = [span.sample.latent_shape for span in spans]
        positions = [self.adapter.positions(shape, s.start, s.stop) for shape, s in zip(shapes, spans, strict=True)]
        captions = [self.cache.read_text(span.sample).to(self.dtype) for span in spans]
        precise = torch.float64 if self.dtype == torch.float64 else torch.float32  # never narrower: t is times 1000
        return Packed(
            tokens_TCphw=tokens_TCphw.to(self.device),
            positions_T3=torch.cat([torch.empty((0, 3), dtype=torch.int64), *positions]).to(self.device),
            row_T=row_T.to(self.device),
            timestep_R=torch.tensor(list(times.values()), dtype=precise).to(self.device),
            text_LD=torch.cat([torch.empty((0, self.text_dim), dtype=self.dtype), *captions]).to(self.device),
            piece_lengths=tuple(piece.length for piece in layout.pieces),
            text_lengths=tuple(len(caption) for caption in captions),
            text_spans=tuple(span.text for span in spans) if self.spec.joint is not None else None,
            piece_rows=tuple(row_P.tolist()),
            grids=tuple(self.spec.grid(shape) for shape in shapes),
        )
