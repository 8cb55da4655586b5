"""Small real media, made by libav when a test asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from zellige_ray.config import DataConfig
from zellige_ray.data.media import write_mp4, write_png

Pixels = NDArray[np.uint8]


@pytest.fixture(scope="session")
def make_clip() -> Callable[..., Pixels]:
    def make(frames: int, height: int = 48, width: int = 64, seed: int = 0) -> Pixels:
        """A smooth wave that moves, in a tint that changes slowly: `frames_FHWC`."""
        t, y, x = np.mgrid[0:frames, 0:height, 0:width].astype(np.float64)
        wave = np.sin((x + 2 * y + t + 9 * seed) / 25) * 80 + 128
        return np.asarray(np.stack([wave + 20, wave + x / 8, wave - 30 + y / 8], -1), dtype=np.uint8)

    return make


@pytest.fixture
def media_folder(tmp_path: Path, make_clip: Callable[..., Pixels]) -> Path:
    """Two pictures and two clips with captions; one picture without."""
    folder = tmp_path / "media"
    write_png(folder / "red.png", make_clip(1)[0])
    write_png(folder / "sub" / "blue.png", make_clip(1, 50, 70, seed=5)[0])
    write_mp4(folder / "short.mp4", make_clip(7))
    write_mp4(folder / "sub" / "long.mp4", make_clip(22, 32, 96))
    (folder / "red.txt").write_text("A red\nwave.")
    (folder / "short.txt").write_text("")
    (folder / "sub" / "long.txt").write_text("word " * 300)
    return folder


@pytest.fixture
def data_config(media_folder: Path, tmp_path: Path) -> DataConfig:
    return DataConfig(source=str(media_folder), cache=str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def fast_start_mp4(tmp_path_factory: pytest.TempPathFactory, make_clip: Callable[..., Pixels]) -> bytes:
    """A clip of 60 noisy frames whose index comes first, so that a cut file still opens."""
    path = tmp_path_factory.mktemp("fast") / "clip.mp4"
    noise = np.random.default_rng(0).integers(0, 40, (60, 48, 64, 3), dtype=np.uint8)
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("mpeg4", rate=16)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for frame in make_clip(60) // 2 + noise:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return path.read_bytes()
