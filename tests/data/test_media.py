"""Pixels out of files, whole and broken."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zellige_ray.data.geometry import fit
from zellige_ray.data.media import probe, read_frames, write_mp4, write_png
from zellige_ray.errors import DataError


def encode(codec: str, pix_fmt: str, frame: np.ndarray, source_format: str) -> bytes:
    context = av.CodecContext.create(codec, "w")
    context.height, context.width = frame.shape[:2]
    context.pix_fmt, context.time_base = pix_fmt, Fraction(1, 1)
    picture = av.VideoFrame.from_ndarray(frame, format=source_format)
    picture.pts = 0
    return b"".join(bytes(p) for p in [*context.encode(picture), *context.encode(None)])


def test_a_picture_comes_back_bit_by_bit(tmp_path: Path, make_clip: Callable[..., np.ndarray]) -> None:
    frame = make_clip(1, 33, 47)[0]
    write_png(tmp_path / "a.png", frame)
    assert (read_frames(tmp_path / "a.png") == frame[None]).all()
    assert (probe(tmp_path / "a.png").height, probe(tmp_path / "a.png").frames) == (33, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("frames", [1, 2, 31])
def test_a_clip_keeps_its_frames_and_nearly_its_pixels(
    tmp_path: Path, make_clip: Callable[..., np.ndarray], frames: int
) -> None:
    clip = make_clip(frames)
    write_mp4(tmp_path / "a.mp4", clip, fps=24)
    found = read_frames(tmp_path / "a.mp4")
    assert found.shape == clip.shape
    assert np.abs(found.astype(int) - clip).mean() < 4
    assert probe(tmp_path / "a.mp4").frames == frames
    assert len(read_frames(tmp_path / "a.mp4", start=frames - 1, count=9)) == 1


@pytest.mark.parametrize("start", [255, 256, 300, 511, 512, 599])
def test_a_late_cut_is_reached_by_seeking_and_is_exact(
    tmp_path: Path, make_clip: Callable[..., np.ndarray], start: int
) -> None:
    write_mp4(tmp_path / "a.mp4", make_clip(600, 16, 16))
    found = read_frames(tmp_path / "a.mp4", start, 5)
    assert (found == read_frames(tmp_path / "a.mp4")[start : start + 5]).all()
    with pytest.raises(DataError, match="no frame 600, only 600"):
        read_frames(tmp_path / "a.mp4", 600)


def test_a_percent_sign_in_a_name_is_no_pattern(tmp_path: Path, make_clip: Callable[..., np.ndarray]) -> None:
    write_png(tmp_path / "frame%03d.png", make_clip(1)[0])
    assert len(read_frames(tmp_path / "frame%03d.png")) == 1


def test_grey_and_sixteen_bits_become_three_equal_channels(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(64, dtype=np.uint8) * 4, (32, 1))
    (tmp_path / "grey.png").write_bytes(encode("png", "gray", ramp, "gray"))
    deep = np.ascontiguousarray(ramp.astype(np.uint16) * 257)
    (tmp_path / "deep.png").write_bytes(encode("png", "gray16be", deep.byteswap(), "gray16be"))
    for name in ("grey.png", "deep.png"):
        found = read_frames(tmp_path / name)[0]
        assert found.shape == (32, 64, 3)
        assert np.abs(found.astype(int) - ramp[..., None]).max() <= 1


def test_transparent_pixels_lie_on_white(tmp_path: Path) -> None:
    rgba = np.zeros((32, 32, 4), dtype=np.uint8)
    rgba[:16, :, 3] = 255
    rgba[16:24, :, 3] = 128
    (tmp_path / "a.png").write_bytes(encode("png", "rgba", rgba, "rgba"))
    found = read_frames(tmp_path / "a.png")[0]
    assert found[[0, 20, 31], 0, 0].tolist() == [0, 127, 255]


def test_a_phone_picture_is_turned_upright(tmp_path: Path, make_clip: Callable[..., np.ndarray]) -> None:
    jpeg = encode("mjpeg", "yuvj444p", make_clip(1, 32, 64)[0], "rgb24")
    exif = b"Exif\0\0MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    turned = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]
    (tmp_path / "flat.jpg").write_bytes(jpeg)
    (tmp_path / "turned.jpg").write_bytes(turned)
    flat, found = read_frames(tmp_path / "flat.jpg")[0], read_frames(tmp_path / "turned.jpg")[0]
    assert found.shape == (64, 32, 3)
    assert (found == np.rot90(flat, -1)).all()
    assert (probe(tmp_path / "turned.jpg").height, probe(tmp_path / "turned.jpg").width) == (64, 32)


def test_a_phone_clip_is_turned_upright(tmp_path: Path, fast_start_mp4: bytes) -> None:
    turned = bytearray(fast_start_mp4)
    matrix = turned.find(b"tkhd") + 44
    turned[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    (tmp_path / "flat.mp4").write_bytes(fast_start_mp4)
    (tmp_path / "turned.mp4").write_bytes(turned)
    flat, found = read_frames(tmp_path / "flat.mp4", 0, 2), read_frames(tmp_path / "turned.mp4", 0, 2)
    assert (found == np.rot90(flat, -1, axes=(1, 2))).all()


def test_a_header_that_knows_no_length_is_counted_by_decoding(
    tmp_path: Path, make_clip: Callable[..., np.ndarray]
) -> None:
    target = io.BytesIO()
    with av.open(target, "w", format="mpeg1video") as container:
        stream = container.add_stream("mpeg1video", rate=25)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for frame in make_clip(20):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    (tmp_path / "raw.mpv").write_bytes(target.getvalue())
    assert probe(tmp_path / "raw.mpv").frames is None
    assert len(read_frames(tmp_path / "raw.mpv")) == 20


def test_broken_files_are_named_with_their_reason(
    tmp_path: Path, make_clip: Callable[..., np.ndarray], fast_start_mp4: bytes
) -> None:
    write_png(tmp_path / "whole.png", make_clip(1)[0])
    png = (tmp_path / "whole.png").read_bytes()
    bad_sum = bytearray(png)
    bad_sum[png.rfind(b"IDAT") + 20] ^= 0xFF
    target = io.BytesIO()
    with av.open(target, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=16)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        container.start_encoding()
    cases = {
        "text.mp4": (b"no clip at all\n" * 99, "not a picture or clip"),
        "list.mp4": (b"#EXTM3U\n#EXTINF:10,\nwhole.png\n#EXT-X-ENDLIST\n", "not a picture or clip"),
        "join.mp4": (b"ffconcat version 1.0\nfile whole.png\n", "not a picture or clip"),
        "empty.mp4": (b"", "not a picture or clip"),
        "frameless.mp4": (target.getvalue(), "holds no"),
        "cut.mp4": (fast_start_mp4[: len(fast_start_mp4) * 4 // 10], "cut off|broken"),
        "cut.png": (png[: len(png) // 2], "broken"),
        "sum.png": (bytes(bad_sum), "broken"),
    }
    for name, (data, reason) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=reason):
            read_frames(tmp_path / name)
    with pytest.raises(DataError, match="can't be read"):
        read_frames(tmp_path / "missing.png")
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(DataError, match="not a regular file"):
        read_frames(tmp_path / "pipe.mp4")
    with pytest.raises(DataError, match="no frame 5"):
        read_frames(tmp_path / "whole.png", start=5)


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.one_of(st.none(), st.integers(256, 1 << 20)),
    st.sampled_from([8, 16, 32]),
)
def test_the_size_rule_divides_fits_and_keeps_the_aspect(
    height: int, width: int, limit: int | None, multiple: int
) -> None:
    try:
        found = fit(height, width, limit, multiple)
    except DataError:
        scale = 1 if limit is None else min(1, (limit / (height * width)) ** 0.5)
        assert min(height, width) * scale < multiple + 1e-6
        return
    assert found.height % multiple == found.width % multiple == 0
    assert found.height <= found.scaled_height <= height
    assert found.width <= found.scaled_width <= width
    assert found.top >= 0 and found.left >= 0
    if limit is not None:
        assert found.height * found.width <= limit
    if limit is None or height * width <= limit:
        assert (found.scaled_height, found.scaled_width) == (height, width)
    else:
        assert abs(found.scaled_height * width - found.scaled_width * height) <= max(height, width)
