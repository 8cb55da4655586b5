"""Media files: pixels of pictures and clips in, pictures and clips out, through libav.

Shape suffixes: F frames, H rows, W columns, C channels (red, green, blue).
"""

from __future__ import annotations

import io
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from zellige_ray.data.atomic import replace_file
from zellige_ray.data.geometry import Fit
from zellige_ray.errors import DataError

Pixels = NDArray[np.uint8]

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"})
VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".mpv", ".ts", ".gif"})
MAX_FRAME_PIXELS = 1 << 28
SEEK_FROM = 256  # a cut that starts earlier is reached by decoding
# Only formats that hold their own pixels: a playlist that calls itself .mp4 must not open other files.
_CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegvideo,mpegts,m4v,h264,hevc,gif,apng,"
    "png_pipe,jpeg_pipe,webp_pipe,bmp_pipe,tiff_pipe"
)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a file's header says; it may lie about frames, so `frames` is None where only decoding tells.

    height, width: as shown, turned and with square pixels. Units: pixels, frames per second.
    """

    height: int
    width: int
    frames: int | None
    fps: float


def probe(path: str | Path) -> Probe:
    """Size and length of a media file, from its header and its first frame. Raises DataError like `frames`."""
    with _opened(Path(path)) as (container, stream):
        for frame in _decoded(container, stream):
            height, width = _shown_size(stream, frame)
            count = 1 if _is_picture(container) else stream.frames or None
            return Probe(height, width, count, float(stream.average_rate or 0))
    raise DataError("it holds no frame")


def frames(path: str | Path, choose: Callable[[int, int], Fit] | None = None, start: int = 0) -> Iterator[Pixels]:
    """The frames of a file from number `start` on, as `frame_HWC`, upright, on white where they were transparent.

    choose: (height, width) of the first frame -> how all are resized and cropped; default: not at all.
    Raises DataError with a reason: not a media file, no video stream, no frame, broken data, frames missing.
    """
    with _opened(Path(path)) as (container, stream):
        used: Fit | None = None
        last = -1
        for number, frame in _numbered(container, stream, start):
            last = number
            if number < start:
                continue
            if used is None:
                height, width = _shown_size(stream, frame)
                used = choose(height, width) if choose is not None else Fit(height, width, height, width)
            yield _pixels(frame, used)
        if last < 0:
            raise DataError("it holds no frame")
        if "mp4" in container.format.name and last + 1 < 0.9 * stream.frames:  # its sample table is exact
            raise DataError(f"it is cut off: {stream.frames} frames promised, {last + 1} decoded")
        if last < start:
            raise DataError(f"it has no frame {start}, only {last + 1}")


def read_frames(path: str | Path, start: int = 0, count: int | None = None) -> Pixels:
    """`frames_FHWC` [start, start + count) of a file. Raises DataError like `frames`."""
    found: list[Pixels] = []
    for frame in frames(path, start=start):
        if count is not None and len(found) == count:
            break
        found.append(frame)
    return np.stack(found)


def write_png(path: str | Path, frame_HWC: Pixels) -> None:
    """Writes one picture; the file appears when it is complete."""
    context: Any = av.CodecContext.create("png", "w")
    context.height, context.width = frame_HWC.shape[:2]
    context.pix_fmt = "rgb24"
    context.time_base = Fraction(1, 1)
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HWC), format="rgb24")
    frame.pts = 0
    packets = [*context.encode(frame), *context.encode(None)]
    replace_file(Path(path), b"".join(bytes(packet) for packet in packets))


def write_mp4(path: str | Path, frames_FHWC: Sequence[Pixels] | Pixels, fps: float = 16.0) -> None:
    """Writes a clip (H.264 where libav has libx264, else MPEG-4); the file appears when it is complete.

    The sides must be even. Units: frames per second.
    """
    codec = next(name for name in ("libx264", "mpeg4") if name in av.codec.codecs_available)
    target = io.BytesIO()
    with av.open(target, "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames_FHWC[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "18"} if codec == "libx264" else {"qscale": "3"}
        for frame_HWC in frames_FHWC:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HWC), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    replace_file(Path(path), target.getvalue())


class _Nameless:
    """A file without its name: libav must judge by content, and a `%03d` in a name is no pattern."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.read = file.read
        self.seek = file.seek
        self.tell = file.tell


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise DataError("it is not a regular file")
        file = path.open("rb")
    except OSError as fault:
        raise DataError(f"it can't be read: {fault.strerror or fault}") from fault
    with file:
        try:
            container: Any = av.open(_Nameless(file), options={"format_whitelist": _CONTAINERS})
        except (av.error.FFmpegError, ValueError) as fault:
            raise DataError(f"it is not a picture or clip that can be read: {_reason(fault)}") from fault
        with container:
            stream = next((s for s in container.streams.video), None)
            if stream is None:
                raise DataError("it holds no video stream")
            if stream.codec_context is None:
                raise DataError("there is no decoder for its video stream")
            width, height = stream.codec_context.width, stream.codec_context.height
            if width * height > MAX_FRAME_PIXELS:
                raise DataError(f"its frames of {width}x{height} exceed {MAX_FRAME_PIXELS} pixels")
            if _is_picture(container):
                stream.codec_context.options = {"err_detect": "crccheck+bitstream+buffer+explode"}
            stream.thread_type = "AUTO"
            yield container, stream


def _decoded(container: Any, stream: Any) -> Iterator[Any]:
    try:
        yield from container.decode(stream)
    except (av.error.FFmpegError, ValueError) as fault:
        raise DataError(f"its data is broken: {_reason(fault)}") from fault


def _numbered(container: Any, stream: Any, start: int) -> Iterator[tuple[int, Any]]:
    """Frames with their numbers, from the last key frame at or before `start` where the file's clock is a plain one."""
    if start < SEEK_FROM or "mp4" not in container.format.name or not _has_plain_clock(stream):
        yield from enumerate(_decoded(container, stream))
        return
    first, rate, base = stream.start_time or 0, stream.average_rate, stream.time_base
    container.seek(first + int(start / rate / base), stream=stream, backward=True, any_frame=False)
    before = -1
    for frame in _decoded(container, stream):
        number = -1 if frame.pts is None else round((frame.pts - first) * base * rate)
        if number <= before or (before < 0 and number > start):
            raise DataError(f"its frames are not in order of time, so frame {start} can't be found")
        before = number
        yield number, frame


def _has_plain_clock(stream: Any) -> bool:
    rate, base = stream.average_rate, stream.time_base
    return bool(
        rate and base and rate == stream.base_rate == stream.guessed_rate and (1 / rate / base).denominator == 1
    )


def _is_picture(container: Any) -> bool:
    return str(container.format.name).endswith("_pipe")


def _shown_size(stream: Any, frame: Any) -> tuple[int, int]:
    ratio = stream.sample_aspect_ratio or 1
    width = round(frame.width * ratio) if 0.25 <= ratio <= 4 else frame.width
    return (width, frame.height) if _quarter_turns(frame) % 2 else (frame.height, width)


def _quarter_turns(frame: Any) -> int:
    return int(round(frame.rotation / 90) % 4)


def _pixels(frame: Any, used: Fit) -> Pixels:
    turns = _quarter_turns(frame)
    height, width = used.scaled_height, used.scaled_width
    if turns % 2:
        height, width = width, height
    if "pal8" in frame.format.name or any(component.is_alpha for component in frame.format.components):
        rgba_HWC = frame.to_ndarray(format="rgba").astype(np.uint16)
        alpha_HW1 = rgba_HWC[..., 3:]
        on_white_HWC = (rgba_HWC[..., :3] * alpha_HW1 + 255 * (255 - alpha_HW1) + 127) // 255
        frame = av.VideoFrame.from_ndarray(on_white_HWC.astype(np.uint8), format="rgb24")
    if (frame.height, frame.width) == (height, width):
        frame_HWC = frame.to_ndarray(format="rgb24")
    else:
        frame_HWC = frame.reformat(width=width, height=height, format="rgb24", interpolation="AREA").to_ndarray()
    frame_HWC = np.rot90(frame_HWC, turns)
    return np.ascontiguousarray(
        frame_HWC[used.top : used.top + used.height, used.left : used.left + used.width], dtype=np.uint8
    )


def _reason(fault: Exception) -> str:
    return getattr(fault, "strerror", None) or str(fault)
