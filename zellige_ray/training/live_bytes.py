"""Live bytes: how much memory tensors hold at once, counted exactly on a CPU, asked from the allocator on CUDA.

On a CPU every operation of the thread is looked at, which makes small ones several times slower: for a profile or a
test, never for a step that counts. What a kernel allocates inside itself is not seen there; `process_bytes` sees all.
"""

from __future__ import annotations

import resource
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(Protocol):
    """A count that runs while it is entered. Units: bytes."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def now(self) -> int:
        """Alive at this moment."""
        ...

    @property
    def peak(self) -> int:
        """Most that was alive at once since it was entered."""
        ...

    def lap(self) -> int:
        """Most that was alive at once since the last lap; the next one begins."""
        ...


class CpuLiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Storages seen by operations of this thread: each counts once, however many views of it there are.

    A storage that dies in another thread (a send that completes) is noticed too, and one that is resized in place. An
    output counts as soon as its operation returns it.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        """tensors: alive already, and to be counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._lock = threading.RLock()  # a collection may run a callback inside of a locked line
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._elastic: dict[int, weakref.ref[Any]] = {}  # given back and filled again in place, without an operation
        self._now = self._peak = self._lap = 0
        self._see(list(tensors))

    @property
    def now(self) -> int:
        with self._lock:
            self._shrink()
            return self._now

    @property
    def peak(self) -> int:
        return max(self._peak, self._lap)

    def lap(self) -> int:
        with self._lock:
            lap, self._peak, self._lap = self._lap, self.peak, self.now
        return lap

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._see((args, kwargs))
        out = func(*args, **(kwargs or {}))
        self._see(out)
        return out

    def _see(self, value: Any) -> None:
        for tensor in _tensors(value):
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            known = self._alive.get(key)
            if (known is not None and known[1] == size) or storage.device.type == "meta":
                continue
            with self._lock:
                if known is None:
                    ref = weakref.ref(storage, partial(self._died, key))
                else:
                    ref, self._now = known[0], self._now - known[1]
                if known is not None or size == 0:
                    self._elastic[key] = ref
                self._alive[key] = (ref, size)
                self._now += size
                self._shrink()
                self._lap = max(self._lap, self._now)

    def _shrink(self) -> None:
        for key, ref in self._elastic.items():
            storage, (_, size) = ref(), self._alive[key]
            if storage is not None and storage.nbytes() < size:
                self._alive[key] = (ref, storage.nbytes())
                self._now += storage.nbytes() - size

    def _died(self, key: int, ref: weakref.ref[Any]) -> None:
        with self._lock:
            self._elastic.pop(key, None)
            self._now -= self._alive.pop(key)[1]


class CudaLiveBytes:
    """What the caching allocator has handed out on one device, by all threads."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._peak = device, 0

    def __enter__(self) -> Self:
        torch.cuda.reset_peak_memory_stats(self._device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lap()

    @property
    def now(self) -> int:
        return int(torch.cuda.memory_allocated(self._device))

    @property
    def peak(self) -> int:
        return max(self._peak, int(torch.cuda.max_memory_allocated(self._device)))

    def lap(self) -> int:
        lap = int(torch.cuda.max_memory_allocated(self._device))
        self._peak = max(self._peak, lap)
        torch.cuda.reset_peak_memory_stats(self._device)
        return lap


def count_live(device: torch.device, tensors: Iterable[Tensor] = ()) -> LiveBytes:
    """A count for a device. tensors: alive already; only a CPU's count must be told of them."""
    return CudaLiveBytes(device) if device.type == "cuda" else CpuLiveBytes(tensors)


def peak_bytes(run: Callable[[], None], tensors: Iterable[Tensor] = ()) -> int:
    """Most bytes of CPU tensors alive at once while `run` runs: those that it made or touched, and `tensors`."""
    live = CpuLiveBytes(tensors)
    with live:
        run()
    return live.peak


class ProcessPeak:
    """The most resident memory of this process since the last `restart`, where Linux lets it be reset; else ever."""

    def __init__(self) -> None:
        self.base = resident_bytes()

    def restart(self) -> None:
        """Forgets the peak so far."""
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:  # not Linux, or not allowed: the peak is that of the process's life
            return

    def read(self) -> int:
        """Resident at the peak, whoever asked for it. Units: bytes."""
        return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class StepPeak:
    """The most memory of one step, cheap enough for every step: of a GPU's tensors, or of the process beyond its base.

    The base is what the process has when this is made, interpreter and libraries, or what `settle` finds.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._process = device, ProcessPeak()

    def settle(self, tensor_bytes: int) -> None:
        """The process has loaded what it needs: beyond `tensor_bytes`, what it has now is no step's doing."""
        self._process.base = max(self._process.base, resident_bytes() - tensor_bytes)

    def restart(self) -> None:
        """A step begins."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._process.restart()

    def read(self) -> int:
        """The most since then. Units: bytes."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        return max(0, self._process.read() - self._process.base)

    def resident(self) -> int:
        """The most resident memory of the process since then. Units: bytes."""
        return self._process.read()


def resident_bytes() -> int:
    """Resident memory of this process now; where the system does not say, the most it ever had. Units: bytes."""
    return _status("VmRSS") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(key: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [x for v in value.values() for x in _tensors(v)]
    return [x for v in value for x in _tensors(v)] if isinstance(value, tuple | list) else []
