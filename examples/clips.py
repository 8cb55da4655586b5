"""A data set of random latents, pictures and clips of many sizes, with captions; a stand-in for your own."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

SHAPES = [
    (1, 4, 4),
    (1, 6, 4),
    (3, 4, 6),
    (1, 8, 8),
    (5, 6, 8),
    (1, 4, 8),
    (2, 8, 6),
    (1, 6, 6),
]  # frames, rows, columns
TEXT_DIM = 16


class Clips(Dataset[dict[str, torch.Tensor]]):
    """Each sample: latents [16, F, H, W], text [L, D]."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(i)
        latents = torch.randn((16, *SHAPES[i % len(SHAPES)]), generator=random)
        return {"latents": latents, "text": torch.randn((2 + i % 5, TEXT_DIM), generator=random)}
