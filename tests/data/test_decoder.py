"""Decoding in a process of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from zellige_ray.data.decoder import Decoder
from zellige_ray.data.media import read_frames, write_mp4, write_png
from zellige_ray.errors import DataError

CRASH = (sys.executable, "-c", "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 11)")
HANG = (sys.executable, "-c", "import time; time.sleep(60)")


def test_frames_are_those_of_this_process_and_the_process_is_used_again(
    tmp_path: Path, make_clip: Callable[..., np.ndarray]
) -> None:
    write_mp4(tmp_path / "a.mp4", make_clip(12))
    write_png(tmp_path / "a.png", make_clip(1)[0])
    (tmp_path / "bad.mp4").write_bytes(b"text")
    with Decoder() as decoder:
        found = decoder.decode(tmp_path / "a.mp4", start=3, count=5)
        assert (found.frames_FHWC == read_frames(tmp_path / "a.mp4", 3, 5)).all()
        assert found.more
        assert (found.source_height, found.source_width) == (48, 64)
        with pytest.raises(DataError, match="not a picture or clip"):
            decoder.decode(tmp_path / "bad.mp4")
        small = decoder.decode(tmp_path / "a.png", max_pixels=16 * 32, multiple=16)
        assert small.frames_FHWC.shape == (1, 16, 16, 3)
        assert not small.more


def test_a_file_that_crashes_the_decoder_is_a_reason_and_not_the_end(
    tmp_path: Path, make_clip: Callable[..., np.ndarray]
) -> None:
    write_png(tmp_path / "a.png", make_clip(1)[0])
    with Decoder(command=CRASH) as decoder, pytest.raises(DataError, match=r"crashed the decoder.*SIGSEGV"):
        decoder.decode(tmp_path / "a.png")


def test_a_file_that_hangs_the_decoder_is_given_up(tmp_path: Path) -> None:
    started = time.monotonic()
    with Decoder(stall_timeout_s=0.5, command=HANG) as decoder, pytest.raises(DataError, match=r"no frame for 0\.5 s"):
        decoder.decode(tmp_path / "a.png")
    assert time.monotonic() - started < 10


def test_a_decoder_works_again_after_a_death(tmp_path: Path, make_clip: Callable[..., np.ndarray]) -> None:
    write_png(tmp_path / "a.png", make_clip(1)[0])
    with Decoder() as decoder:
        decoder.decode(tmp_path / "a.png")
        assert decoder._process is not None
        decoder._process.kill()
        decoder._process.wait()
        assert len(decoder.decode(tmp_path / "a.png").frames_FHWC) == 1


def test_a_clip_of_too_many_pixels_names_the_knob(
    tmp_path: Path, make_clip: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mp4(tmp_path / "a.mp4", make_clip(12))
    monkeypatch.setattr("zellige_ray.data.decoder.MAX_CLIP_BYTES", 5 * 48 * 64 * 3)
    with Decoder() as decoder:
        with pytest.raises(DataError, match=r"first 6 frames exceed .*data\.max_frames"):
            decoder.decode(tmp_path / "a.mp4")
        assert len(decoder.decode(tmp_path / "a.mp4", count=5).frames_FHWC) == 5
