"""Made-up shares: input of the right shapes for a layout, without a data set, for profiles."""

from __future__ import annotations

import torch

from zellige_ray.attention.layout import Piece, RankLayout
from zellige_ray.models.adapter import Packed, joint_parts
from zellige_ray.models.specs import ModelSpec
from zellige_ray.placement.plan import Round
from zellige_ray.training.batch import Loader, Share

COLUMNS = 16  # of the token grid, where the length is a multiple of it


def make_share(loader: Loader, layout: RankLayout, round_: Round) -> Share:
    """A share of noise for this rank's pieces, each sequence one frame; lengths of a joint model include captions."""
    spec = loader.spec
    texts = [int(round_.text_tokens_S[p.sequence]) for p in layout.pieces]
    shapes = [_latent_shape(spec, _visual(spec, round_, p)) for p in layout.pieces]
    parts = [_parts(spec, round_, p) for p in layout.pieces]
    row_of = {s: i for i, s in enumerate(dict.fromkeys(p.sequence for p in layout.pieces))}
    counts = [b - a for (a, b), _ in parts]
    total, dtype, device = sum(counts), loader.dtype, loader.device
    rows = torch.tensor([row_of[p.sequence] for p in layout.pieces], dtype=torch.int64)
    positions = [loader.adapter.positions(x, a, b) for x, ((a, b), _) in zip(shapes, parts, strict=True)]
    tokens = torch.randn((total, spec.latent_channels, *spec.patch), dtype=dtype, device=device)
    packed = Packed(
        tokens_TCphw=tokens,
        positions_T3=torch.cat([torch.empty((0, 3), dtype=torch.int64), *positions]).to(device),
        row_T=rows.repeat_interleave(torch.tensor(counts, dtype=torch.int64)).to(device),
        timestep_R=torch.full((len(row_of),), 0.5, dtype=torch.promote_types(dtype, torch.float32), device=device),
        text_LD=torch.randn((sum(texts), loader.text_dim), dtype=dtype, device=device),
        piece_lengths=tuple(p.length for p in layout.pieces),
        text_lengths=tuple(texts),
        text_spans=tuple(text for _, text in parts) if spec.joint is not None else None,
        piece_rows=tuple(rows.tolist()),
        grids=tuple(spec.grid(x) for x in shapes),
    )
    return Share(packed, (), torch.randn_like(tokens), torch.full((total,), 1.0, dtype=torch.float64, device=device))


def _visual(spec: ModelSpec, round_: Round, piece: Piece) -> int:
    text = int(round_.text_tokens_S[piece.sequence]) if spec.joint is not None else 0
    return int(round_.tokens_S[piece.sequence]) - text


def _parts(spec: ModelSpec, round_: Round, piece: Piece) -> tuple[tuple[int, int], tuple[int, int]]:
    if spec.joint is None:
        return (piece.start, piece.stop), (0, 0)
    text = int(round_.text_tokens_S[piece.sequence])
    return joint_parts(spec.joint, piece.start, piece.stop, _visual(spec, round_, piece), text)


def _latent_shape(spec: ModelSpec, tokens: int) -> tuple[int, int, int, int]:
    columns = COLUMNS if tokens % COLUMNS == 0 else 1
    depth, height, width = spec.patch
    return spec.latent_channels, depth, tokens // columns * height, columns * width
