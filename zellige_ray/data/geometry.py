"""The size rule: which pixels of a frame are used, given a budget and a multiple."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zellige_ray.errors import DataError


@dataclass(frozen=True, slots=True)
class Fit:
    """A frame is resized to (scaled_height, scaled_width); its centre of (height, width) is kept. Units: pixels."""

    scaled_height: int
    scaled_width: int
    height: int
    width: int

    @property
    def top(self) -> int:
        """First row that is kept."""
        return (self.scaled_height - self.height) // 2

    @property
    def left(self) -> int:
        """First column that is kept."""
        return (self.scaled_width - self.width) // 2


def fit(height: int, width: int, max_pixels: int | None, multiple: int) -> Fit:
    """The largest use of a frame: its own aspect ratio, sides that are multiples, never scaled up.

    A frame of at most `max_pixels` is only cropped, at its centre, by less than `multiple` per side; a larger one is
    first scaled down so that what remains has at most `max_pixels`. Raises DataError when a side falls below
    `multiple`.
    """
    scale = 1.0 if max_pixels is None else min(1.0, math.sqrt(max_pixels / (height * width)))
    rows, columns = (int(side * scale + 1e-9) // multiple * multiple for side in (height, width))
    if min(rows, columns) < multiple:
        limit = f" within data.max_pixels {max_pixels}" if scale < 1 else ""
        raise DataError(f"too small: {width}x{height}{limit} leaves a side under {multiple} pixels")
    if scale == 1:
        return Fit(height, width, rows, columns)
    ratio = max(rows / height, columns / width)
    return Fit(max(rows, round(height * ratio)), max(columns, round(width * ratio)), rows, columns)
