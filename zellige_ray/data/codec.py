"""The codecs: how frames become latents, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zellige_ray.config import CodecConfig
from zellige_ray.errors import DataError

Latents = NDArray[np.float32]
Pixels = NDArray[np.uint8]


class Codec(Protocol):
    """Causal in time: 1 + t n frames become 1 + n latent frames, the first of them from the first frame alone.

    Shape suffixes: F frames, H rows, W columns, C channels. `signature` says all that its latents depend on.
    """

    signature: str
    channels: int
    temporal_stride: int
    spatial_stride: int

    def encode(self, frames_FHWC: Pixels) -> Latents:
        """`latents_CFHW` in float32, of roughly unit variance. Raises DataError for sizes that don't divide."""

    def decode(self, latents_CFHW: Any) -> Pixels:
        """`frames_FHWC` of latents, an array or a CPU tensor."""


def check_frames(codec: Codec, frames_FHWC: Pixels) -> None:
    """Raises DataError for frames whose number or sides the codec's strides don't divide."""
    frames, height, width, channels = frames_FHWC.shape
    odd = (frames - 1) % codec.temporal_stride or height % codec.spatial_stride or width % codec.spatial_stride
    if frames < 1 or odd or channels != 3:
        raise DataError(
            f"codec {codec.signature} takes {codec.temporal_stride}n+1 frames with sides that are multiples of "
            f"{codec.spatial_stride} and 3 channels, got {frames} of {width}x{height} with {channels}"
        )


def _dct(config: CodecConfig) -> Codec:
    from zellige_ray.data.dct import DctCodec

    return DctCodec()


def _vae(config: CodecConfig) -> Codec:
    from zellige_ray.data.vae import load_vae

    assert config.path is not None  # CodecConfig sees to it
    return load_vae(config.path)


codecs: dict[str, Callable[[CodecConfig], Codec]] = {"dct": _dct, "vae": _vae}


def make_codec(config: CodecConfig) -> Codec:
    """The configured codec. Raises DataError for a VAE that can't be loaded."""
    return codecs[config.name](config)
