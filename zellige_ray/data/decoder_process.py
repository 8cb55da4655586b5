"""The decoding process: reads requests on stdin, writes frames on stdout, and may crash without harm.

A request is one JSON line: path, start, count, max_pixels, multiple. The answer is, per frame, a JSON line with
`height` and `width` followed by the pixels, then one line with `end` or `error`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from zellige_ray.data.geometry import Fit, fit
from zellige_ray.data.media import frames
from zellige_ray.errors import DataError


def answer(request: dict[str, Any], replies: BinaryIO) -> None:
    """Writes the frames [start, start + count) of a file, and whether there are more. A fault becomes `error`."""
    source = [0, 0]

    def choose(height: int, width: int) -> Fit:
        source[:] = height, width
        return fit(height, width, request["max_pixels"], request["multiple"])

    count, sent, more = request["count"], 0, False
    try:
        for frame_HWC in frames(Path(request["path"]), choose, request["start"]):
            if sent == count:
                more = True
                break
            _line(replies, {"height": frame_HWC.shape[0], "width": frame_HWC.shape[1]})
            replies.write(frame_HWC.tobytes())
            replies.flush()
            sent += 1
    except DataError as fault:
        _line(replies, {"error": str(fault)})
    except MemoryError:
        _line(replies, {"error": "it does not fit into memory"})
    else:
        _line(replies, {"end": sent, "more": more, "source_height": source[0], "source_width": source[1]})
    replies.flush()


def main() -> int:
    """Answers requests until stdin ends. Prints of native code go to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)
        for line in sys.stdin.buffer:
            try:
                answer(json.loads(line), replies)
            except BrokenPipeError:
                return 0
    return 0


def _line(replies: BinaryIO, value: dict[str, Any]) -> None:
    replies.write(json.dumps(value).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
