"""The decoder: frames of untrusted files, decoded in a process that may crash or hang without harm."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import zellige_ray
from zellige_ray.data.codec import Pixels
from zellige_ray.errors import DataError

STALL_TIMEOUT_S = 30.0
MAX_CLIP_BYTES = 4 << 30
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """`frames_FHWC` as they will be encoded. more: the file goes on. source_*: size before scaling and cropping."""

    frames_FHWC: Pixels
    more: bool
    source_height: int
    source_width: int


class Decoder:
    """One decoding process, started when needed, replaced when it died; used by one thread at a time."""

    def __init__(self, stall_timeout_s: float = STALL_TIMEOUT_S, command: tuple[str, ...] | None = None) -> None:
        """stall_timeout_s: longest wait for the next frame. command: what runs instead, for tests."""
        self._timeout_s = stall_timeout_s
        self._command = command or (sys.executable, "-m", "zellige_ray.data.decoder_process")
        self._process: subprocess.Popen[bytes] | None = None
        self._received = bytearray()

    def decode(
        self, path: Path, start: int = 0, count: int | None = None, max_pixels: int | None = None, multiple: int = 1
    ) -> Decoded:
        """Frames [start, start + count) of a file, fitted to the size rule.

        Raises DataError with the reason: what `media.frames` raises, a death of the process, no frame in time, more
        pixels than MAX_CLIP_BYTES.
        """
        request = {"path": str(path), "start": start, "count": count, "max_pixels": max_pixels, "multiple": multiple}
        found: list[Pixels] = []
        try:
            self._send(json.dumps(request).encode() + b"\n")
            while True:
                reply = self._line()
                if "error" in reply:
                    raise DataError(reply["error"])
                if "end" in reply:
                    return Decoded(np.stack(found), reply["more"], reply["source_height"], reply["source_width"])
                found.append(self._frame(reply["height"], reply["width"]))
                if len(found) * found[0].nbytes > MAX_CLIP_BYTES:
                    self.close()
                    limit = f"{MAX_CLIP_BYTES} bytes; set data.max_frames or data.max_pixels"
                    raise DataError(f"its first {len(found)} frames exceed {limit}")
        except (TimeoutError, EOFError, BrokenPipeError) as fault:
            raise DataError(self._bury(fault)) from fault
        except BaseException as fault:
            if not isinstance(fault, DataError):
                self.close()
            raise

    def interrupt(self) -> None:
        """Kills the process from another thread; the thread that waits for a frame gets a DataError."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        self._received.clear()
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def __enter__(self) -> Decoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, request: bytes) -> None:
        if self._process is None or self._process.poll() is not None:
            self.close()
            root = str(Path(zellige_ray.__file__).parent.parent)
            paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
            )
        assert self._process.stdin is not None
        self._process.stdin.write(request)
        self._process.stdin.flush()

    def _line(self) -> dict[str, Any]:
        while (end := self._received.find(b"\n")) < 0:
            self._receive()
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        value: dict[str, Any] = json.loads(line)
        return value

    def _frame(self, height: int, width: int) -> Pixels:
        size = height * width * 3
        while len(self._received) < size:
            self._receive()
        frame_HWC = np.frombuffer(bytes(self._received[:size]), dtype=np.uint8).reshape(height, width, 3)
        del self._received[:size]
        return frame_HWC

    def _receive(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        handle = self._process.stdout.fileno()
        deadline = time.monotonic() + self._timeout_s
        if not select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        data = os.read(handle, _READ_BYTES)
        if not data:
            raise EOFError
        self._received += data

    def _bury(self, fault: Exception) -> str:
        if isinstance(fault, TimeoutError):
            self.close()
            return f"decoding gave no frame for {self._timeout_s:g} s and was stopped"
        assert self._process is not None
        try:
            code = self._process.wait(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            code = 0
        self.close()
        return f"it crashed the decoder ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
