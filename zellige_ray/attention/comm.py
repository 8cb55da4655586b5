"""Comm: the communicator of one rank in one epoch, a plain object over one process group.

There is no default process group, no `init_process_group` and no `new_group`: torch 2.13's `new_group` with local
synchronisation hangs on overlapping groups, and a world-wide registry can't hold two epochs. A Comm is made by its
members only, under a prefix of the store that names the epoch, so that nothing of an older epoch can reach it.

Why this can't deadlock: exchanges are point-to-point between real neighbours, each message has its own key, and every
receive is posted before anything is waited for. So a rank's messages leave whatever its peers do, and a wait depends
only on the posting of the same operation by that neighbour; ranks that share no sequence never wait for each other.

After a failure or a time-out a process group is unusable even between the living: it is closed, and `graveyard`
releases it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from zellige_ray.attention.graveyard import release
from zellige_ray.attention.groups import GroupPool
from zellige_ray.attention.pending import Pending, Waiter, Work, meet
from zellige_ray.attention.transport import Group, backends
from zellige_ray.errors import CommError, Regroup

Op = Literal["sum", "max", "min"]

FIRST_COLLECTIVE = 1 << 30  # keys of this class's own messages start here, below are those of `exchange`


class Comm:
    """Point-to-point exchanges and collectives of one epoch; see `Comm.create`.

    One thread posts, any thread may cancel. `sent_bytes` and `num_exchanges` count what was posted, for tests and
    reports.
    """

    def __init__(
        self,
        group: Group,
        pool: GroupPool,
        epoch: int,
        rank: int,
        size: int,
        timeout_s: float,
        cancelled: threading.Event,
    ) -> None:
        self.epoch = epoch
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self.sent_bytes = 0
        self.num_exchanges = 0
        self._group: Group | None = group
        self._pool = pool
        self._cancelled = cancelled
        self._collective = 0
        self._exchanges = Waiter(f"zellige-exchange-{epoch}-{rank}")
        self._collectives = Waiter(f"zellige-collective-{epoch}-{rank}")
        self._asides = Waiter(f"zellige-aside-{epoch}-{rank}")

    @classmethod
    def create(
        cls,
        store: Any,
        epoch: int,
        rank: int,
        size: int,
        backend: Literal["gloo", "nccl"] = "gloo",
        timeout_s: float = 60.0,
        cancelled: Callable[[], bool] = lambda: False,
        max_groups: int = 8,
    ) -> Comm:
        """Meet the other members and connect to them.

        store: a torch.distributed Store that all of them reach. cancelled: asked while waiting for the others to come.
        max_groups: subgroups kept for the `group` transport, least recently used first out.
        Raises CommError naming the ranks that did not come within timeout_s, Regroup when cancelled.
        """
        if backend not in backends:
            raise CommError(f"unknown backend {backend!r}, known are {sorted(backends)}")
        if not 0 <= rank < size:
            raise CommError(f"rank {rank} is outside of a world of {size}")
        from torch.distributed import PrefixStore

        prefixed = PrefixStore(f"zellige/{epoch}", store.clone())  # a client's blocking get holds its lock
        stop = threading.Event()
        meet(prefixed, range(size), rank, f"epoch {epoch}", timeout_s, cancelled)
        group = backends[backend](PrefixStore("world", prefixed), rank, size, timeout_s)
        pool = GroupPool(prefixed, rank, backend, timeout_s, max_groups, stop.is_set, lambda gone: release(gone, []))
        return cls(group, pool, epoch, rank, size, timeout_s, stop)

    def exchange(
        self,
        send: Tensor,
        send_rows: Mapping[int, int],
        recv_rows: Mapping[int, int],
        key: int,
        out: Tensor | None = None,
    ) -> Pending[Tensor]:
        """Start sending rows to peers and receiving rows from them, one message per peer and direction.

        send: [rows, D] contiguous, grouped by peer, ascending. send_rows, recv_rows: peer -> rows (none is 0). key: the
        same on both sides, unique among the exchanges in flight. Result: [rows, D], grouped by peer, ascending; it is
        `out` where that is given, which must have just these rows.
        """
        group = self._open()
        recv = self._receiver(send, recv_rows, out)
        peers = sorted(send_rows.keys() | recv_rows.keys())
        if not peers:
            return Pending.ready(recv)
        self._count(send)
        sends, recvs = sorted(send_rows.items()), sorted(recv_rows.items())
        what = f"exchange {key} with ranks {peers}"
        return self._post(
            self._exchanges, recv, (send, recv), what, lambda: group.exchange(send, sends, recv, recvs, key)
        )

    def exchange_in_group(
        self,
        members: Sequence[int],
        send: Tensor,
        send_rows: Mapping[int, int],
        recv_rows: Mapping[int, int],
        key: int,
        out: Tensor | None = None,
    ) -> Pending[Tensor]:
        """Like `exchange`, as one all-to-all of a real subgroup of exactly these members, who all must call it.

        With all ranks as members it runs on the epoch's own group.
        """
        group = self._open()
        members = tuple(members)
        if len(members) != self.size:
            group = self._pool.get(members)
        recv = self._receiver(send, recv_rows, out)
        send_splits = [send_rows.get(r, 0) for r in members]
        recv_splits = [recv_rows.get(r, 0) for r in members]
        self._count(send)
        what = f"all-to-all {key} of ranks {list(members)}"
        return self._post(
            self._exchanges, recv, (send, recv), what, lambda: group.all_to_all(send, send_splits, recv, recv_splits)
        )

    def admit(self, components: Sequence[tuple[int, ...]]) -> None:
        """Note the components of a coming round for `exchange_in_group`: every rank, every round, in the same order."""
        self._open()
        self._pool.admit([c for c in components if len(c) != self.size])

    def transfer(
        self, sends: Mapping[int, Tensor], recvs: Mapping[int, Tensor], key: int, aside: bool = False
    ) -> Pending[Tensor]:
        """Like `exchange`, for tensors that lie apart: peer -> what it gets, peer -> where its message goes.

        All are of one type; empty ones do not travel. aside: nobody waits for it soon. Result: an empty tensor, when
        all is there.
        """
        group = self._open()
        sent = [(peer, t) for peer, t in sorted(sends.items()) if t.numel()]
        received = [(peer, t) for peer, t in sorted(recvs.items()) if t.numel()]
        if not sent and not received:
            return Pending.ready(torch.empty(0))
        self._count(*(tensor for _, tensor in sent))
        what = f"transfer {key} with ranks {sorted({p for p, _ in (*sent, *received)})}"
        result = torch.empty(0, device=group.device)
        waiter = self._asides if aside else self._exchanges
        return self._post(waiter, result, (sent, received), what, lambda: group.transfer(sent, received, key))

    def all_gather(self, whole: Tensor, members: Sequence[int]) -> Pending[Tensor]:
        """Start filling a flat tensor of which each member holds an equal part, by its place among the members.

        members: ascending, this rank among them; all must call it in the same order. Result: `whole`.
        """
        parts = dict(zip(members, self._parts(whole, members), strict=True))
        mine = parts.pop(self.rank)
        return self.transfer(dict.fromkeys(parts, mine), parts, self._next_key()).then(lambda: whole)

    def reduce_scatter(self, whole: Tensor, members: Sequence[int]) -> Pending[Tensor]:
        """Start summing the members' flat tensors; result: this rank's part of the sum, a new tensor.

        members: as for `all_gather`. The order of summation is that of the members, on every rank and at every call.
        """
        parts = dict(zip(members, self._parts(whole, members), strict=True))
        mine = parts.pop(self.rank)
        come = {peer: torch.empty_like(mine) for peer in parts}

        def total() -> Tensor:
            terms = iter([come.get(member, mine) for member in members])
            out = next(terms).clone()
            for term in terms:
                out += term
            return out

        return self.transfer(parts, come, self._next_key()).then(total)

    def all_reduce(self, tensor: Tensor, op: Op = "sum") -> Pending[Tensor]:
        """Start reducing a tensor over all ranks, in place."""
        group = self._open()
        if self.size == 1:
            return Pending.ready(tensor)
        what = f"all-reduce ({op}) of {tensor.numel()} values over {self.size} ranks"
        return self._post(self._collectives, tensor, tensor, what, lambda: group.all_reduce(tensor, op))

    def broadcast(self, tensor: Tensor, root: int) -> Pending[Tensor]:
        """Start copying the root's tensor to all ranks, in place."""
        group = self._open()
        if self.size == 1:
            return Pending.ready(tensor)
        what = f"broadcast of {tensor.numel()} values from rank {root} to {self.size} ranks"
        return self._post(self._collectives, tensor, tensor, what, lambda: group.broadcast(tensor, root))

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.all_reduce(torch.zeros(1, device=self.device)).wait()

    @property
    def device(self) -> torch.device:
        """Where tensors must be to travel."""
        return self._open().device

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise Regroup when this Comm was cancelled: for work between two waits, which should end with them."""
        if self._cancelled.is_set():
            raise Regroup(f"epoch {self.epoch} was cancelled")

    def cancel(self) -> None:
        """Make everybody who waits on this Comm leave with Regroup; any thread, returns at once."""
        self._cancelled.set()

    def close(self) -> None:
        """Never use it again; returns at once, the group is released in the background."""
        self.cancel()
        group, self._group = self._group, None
        if group is None:
            return
        waiters = [self._exchanges, self._collectives, self._asides]
        for waiter in waiters:
            waiter.stop()
        groups = [group, *self._pool.drain()]
        del group
        release(groups, waiters)

    def _parts(self, whole: Tensor, members: Sequence[int]) -> tuple[Tensor, ...]:
        if self.rank not in members or whole.ndim != 1 or len(whole) % len(members):
            raise CommError(
                f"rank {self.rank} can't part {tuple(whole.shape)} values equally among the ranks {list(members)}"
            )
        return whole.chunk(len(members)) if len(whole) else (whole,) * len(members)

    def _next_key(self) -> int:
        self._collective = (self._collective + 1) % FIRST_COLLECTIVE
        return FIRST_COLLECTIVE + self._collective

    def _count(self, *sent: Tensor) -> None:
        self.num_exchanges += 1
        self.sent_bytes += sum(tensor.numel() * tensor.element_size() for tensor in sent)

    def _receiver(self, send: Tensor, recv_rows: Mapping[int, int], out: Tensor | None) -> Tensor:
        rows = sum(recv_rows.values())
        if out is None:
            return send.new_empty((rows, *send.shape[1:]))
        if out.shape != (rows, *send.shape[1:]) or out.dtype != send.dtype:
            raise CommError(
                f"receive buffer is {tuple(out.shape)} {out.dtype}, "
                f"what comes is {rows} rows of {tuple(send.shape[1:])} {send.dtype}"
            )
        return out

    def _open(self) -> Group:
        self.check()
        if self._group is None:
            raise CommError(f"the communicator of epoch {self.epoch} is closed")
        return self._group

    def _post(
        self, waiter: Waiter, result: Tensor, keep: Any, what: str, post: Callable[[], list[Work]]
    ) -> Pending[Tensor]:
        pending = Pending(result, f"epoch {self.epoch}, rank {self.rank}: {what}", self.timeout_s, self._cancelled)
        try:
            works = post()
        except RuntimeError as fault:  # a peer that is gone already
            pending.finish(fault)
            return pending
        if result.is_cuda:  # the stream waits, not this thread; a dead peer is met by abort (see `transport`)
            for work in works:
                work.wait()
            pending.finish(None)
        else:
            waiter.watch(pending, works, keep)
        return pending
