"""The DCT codec: latents without weights, the strongest coefficients of a fixed orthonormal 3-D cosine transform.

Frames become luma and chroma (BT.601, full range), are cut in blocks of 4 frames x 8 x 8 pixels and transformed; the
first frame stands alone as a block of four equal frames. Of a block's 768 coefficients the 16 with the most energy on
natural pictures and clips are kept (13 luma of one still, 1 of motion, 2 chroma), each over its own deviation. What is
lost is fine texture, chroma detail and most motion within four frames: pictures are soft, and recognisable.
Source of the tables: `benchmarks/dct_codec.py` on the mini set.

Shape suffixes: C channels, F latent frames, H, W latent rows and columns; a block's t, y, x; c of (luma, blue, red).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zellige_ray.data.codec import Latents, Pixels, check_frames

# (t, y, x, c) of the coefficient, and its root mean square on the mini set.
KEPT: tuple[tuple[tuple[int, int, int, int], float], ...] = (
    ((0, 0, 0, 0), 3.56),
    ((0, 0, 0, 1), 0.88),
    ((0, 0, 0, 2), 0.97),
    ((0, 0, 1, 0), 0.66),
    ((0, 1, 0, 0), 0.74),
    ((0, 1, 1, 0), 0.40),
    ((0, 0, 2, 0), 0.36),
    ((0, 2, 0, 0), 0.43),
    ((0, 1, 2, 0), 0.28),
    ((0, 2, 1, 0), 0.29),
    ((0, 0, 3, 0), 0.24),
    ((0, 3, 0, 0), 0.30),
    ((0, 2, 2, 0), 0.22),
    ((0, 1, 3, 0), 0.19),
    ((0, 3, 1, 0), 0.20),
    ((1, 0, 0, 0), 0.30),
)
_TO_YCC = np.array(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]],
    dtype=np.float32,
)


class DctCodec:
    """4 x 8 x 8 like the VAEs of Wan and HunyuanVideo, 16 channels, deterministic."""

    signature = "dct-4x8x8-16/1"
    channels = len(KEPT)
    temporal_stride = 4
    spatial_stride = 8

    def __init__(self) -> None:
        self._basis_Ctyxc = _basis()
        scales = np.array([scale for _, scale in KEPT], dtype=np.float32)
        self._analysis = (self._basis_Ctyxc / scales[:, None, None, None, None]).reshape(self.channels, -1)
        self._synthesis = (self._basis_Ctyxc * scales[:, None, None, None, None]).reshape(self.channels, -1)

    def encode(self, frames_FHWC: Pixels) -> Latents:
        """`latents_CFHW` of `frames_FHWC`. Raises DataError for sizes that don't divide."""
        check_frames(self, frames_FHWC)
        first, rest = frames_FHWC[:1], frames_FHWC[1:]
        groups = (
            [np.repeat(first, 4, axis=0), *np.split(rest, len(rest) // 4)] if len(rest) else [np.repeat(first, 4, 0)]
        )
        return np.stack([self._encode_group(group) for group in groups], axis=1)

    def decode(self, latents_CFHW: Any) -> Pixels:
        """`frames_FHWC` of latents; the first latent frame gives one frame, the mean of its four."""
        latents = np.asarray(latents_CFHW, dtype=np.float32)
        frames = [self._decode_group(latents[:, f]) for f in range(latents.shape[1])]
        frames[0] = frames[0].mean(axis=0, keepdims=True)
        return np.concatenate([_to_rgb(group) for group in frames])

    def _encode_group(self, frames_tHWc: Pixels) -> Latents:
        ycc_tHWc = _to_ycc(frames_tHWc)
        _, height, width, _ = ycc_tHWc.shape
        blocks = ycc_tHWc.reshape(4, height // 8, 8, width // 8, 8, 3).transpose(1, 3, 0, 2, 4, 5)
        latents_HWC = blocks.reshape(height // 8, width // 8, -1) @ self._analysis.T
        return np.ascontiguousarray(latents_HWC.transpose(2, 0, 1))

    def _decode_group(self, latents_CHW: Latents) -> NDArray[np.float32]:
        _, rows, columns = latents_CHW.shape
        blocks = latents_CHW.transpose(1, 2, 0) @ self._synthesis
        frames = blocks.reshape(rows, columns, 4, 8, 8, 3).transpose(2, 0, 3, 1, 4, 5)
        return frames.reshape(4, rows * 8, columns * 8, 3)


def _to_ycc(frames_tHWc: Pixels) -> NDArray[np.float32]:
    """Luma around 0 and chroma, in -0.5 to 0.5."""
    ycc_tHWc = np.asarray((frames_tHWc.astype(np.float32) / 255) @ _TO_YCC.T, dtype=np.float32)
    ycc_tHWc[..., 0] -= 0.5
    return ycc_tHWc


def _to_rgb(ycc_tHWc: NDArray[np.float32]) -> Pixels:
    shifted = ycc_tHWc + np.array([0.5, 0, 0], dtype=np.float32)
    rgb = shifted @ np.linalg.inv(_TO_YCC).T.astype(np.float32)
    return np.clip(np.rint(rgb * 255), 0, 255).astype(np.uint8)


def _basis() -> NDArray[np.float32]:
    """`basis_Ctyxc`: the kept functions of the orthonormal 3-D DCT-II, per colour."""
    four, eight = _cosines(4), _cosines(8)
    basis = np.zeros((len(KEPT), 4, 8, 8, 3))
    for number, ((t, y, x, c), _) in enumerate(KEPT):
        basis[number, ..., c] = four[t][:, None, None] * eight[y][:, None] * eight[x]
    return basis.astype(np.float32)


def _cosines(size: int) -> NDArray[np.float64]:
    order, place = np.mgrid[0:size, 0:size]
    rows = np.cos(np.pi * (place + 0.5) * order / size) * np.sqrt(2 / size)
    rows[0] /= np.sqrt(2)
    return np.asarray(rows, dtype=np.float64)
