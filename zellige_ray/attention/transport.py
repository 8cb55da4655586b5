"""Transport: the few operations Zellige needs of a process group, over gloo and over NCCL.

The gloo half is what the tests run. The NCCL half was written from torch's sources and the issues named below; it was
not run by us (no machine with several GPUs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from zellige_ray.attention.pending import Work
from zellige_ray.attention.polite import polite_threads
from zellige_ray.errors import CommError

Rows = Sequence[tuple[int, int]]  # (peer, rows), ascending peers
Parts = Sequence[tuple[int, Tensor]]  # (peer, what goes to it or comes from it), ascending peers

_ops = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Group(Protocol):
    """One process group as a plain object. Every operation returns works in flight."""

    device: torch.device

    def exchange(self, send: Tensor, sends: Rows, recv: Tensor, recvs: Rows, key: int) -> list[Work]: ...

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> list[Work]: ...

    def transfer(self, sends: Parts, recvs: Parts, key: int) -> list[Work]:
        """One message to each peer from its own tensor, one from each peer into its own tensor."""
        ...

    def all_reduce(self, tensor: Tensor, op: str) -> list[Work]: ...

    def broadcast(self, tensor: Tensor, root: int) -> list[Work]: ...

    def abort(self) -> None:
        """Best effort; gloo has nothing that works."""
        ...


class _TorchGroup:
    """What gloo and NCCL have in common in torch's process group objects."""

    def __init__(self, pg: Any, device: torch.device) -> None:
        self._pg = pg
        self.device = device

    def exchange(self, send: Tensor, sends: Rows, recv: Tensor, recvs: Rows, key: int) -> list[Work]:
        self._check(send)
        return self.transfer(_parts(send, sends), _parts(recv, recvs), key)

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> list[Work]:
        self._check(send)
        return [self._pg.alltoall_base(recv, send, recv_splits, send_splits)]

    def transfer(self, sends: Parts, recvs: Parts, key: int) -> list[Work]:
        for _, tensor in (*sends, *recvs):
            self._check(tensor)
        works: list[Work] = [self._pg.recv([tensor], peer, key) for peer, tensor in recvs]
        return works + [self._pg.send([tensor], peer, key) for peer, tensor in sends]

    def all_reduce(self, tensor: Tensor, op: str) -> list[Work]:
        self._check(tensor)
        options = dist.AllreduceOptions()
        options.reduceOp = _ops[op]  # type: ignore[assignment]  # the stub asks for a ReduceOp, torch takes both
        return [self._pg.allreduce([tensor], options)]

    def broadcast(self, tensor: Tensor, root: int) -> list[Work]:
        self._check(tensor)
        options = dist.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        return [self._pg.broadcast([tensor], options)]

    def abort(self) -> None:
        return None

    def _check(self, tensor: Tensor) -> None:
        if tensor.device.type != self.device.type:
            raise CommError(f"this group moves {self.device.type} tensors, got one on {tensor.device}")
        if not tensor.is_contiguous():
            raise CommError("only contiguous tensors travel")


class _NcclGroup(_TorchGroup):
    """NCCL: one grouped launch per exchange; `abort` frees blocked kernels (needs NCCL >= 2.26)."""

    def transfer(self, sends: Parts, recvs: Parts, key: int) -> list[Work]:
        self._pg._start_coalescing(self.device)
        super().transfer(sends, recvs, key)
        return [self._pg._end_coalescing(self.device)]

    def abort(self) -> None:
        self._pg.abort()


def _parts(tensor: Tensor, rows: Rows) -> Parts:
    """The tensor's rows of each peer, which lie one after the other."""
    parts = torch.split(tensor, [n for _, n in rows])
    return [(peer, part) for (peer, _), part in zip(rows, parts, strict=True)]


def _gloo(store: Any, rank: int, size: int, timeout_s: float) -> Group:
    from torch.distributed import ProcessGroupGloo

    try:
        with polite_threads():
            pg = ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s))
    except RuntimeError as fault:
        raise CommError(f"gloo could not connect rank {rank} of {size} within {timeout_s:g} s: {fault}") from fault
    return _TorchGroup(pg, torch.device("cpu"))


def _nccl(store: Any, rank: int, size: int, timeout_s: float) -> Group:
    if not torch.cuda.is_available():
        raise CommError("backend nccl needs CUDA, this torch sees none; use gloo")
    from torch.distributed import ProcessGroupNCCL

    device = torch.device("cuda", torch.cuda.current_device())
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    try:
        pg = ProcessGroupNCCL(store, rank, size, options)
        pg.eager_connect_single_device(device)
    except RuntimeError as fault:
        raise CommError(f"NCCL could not connect rank {rank} of {size}: {fault}") from fault
    return _NcclGroup(pg, device)


backends: dict[str, Callable[[Any, int, int, float], Group]] = {"gloo": _gloo, "nccl": _nccl}
