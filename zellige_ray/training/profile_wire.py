"""Profile of what ranks do together: exchanges by size and span, what local work hides of them.

Everything here is collective: every rank of the communicator calls it with the same arguments, and repeats are counted,
never timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from zellige_ray.attention.comm import Comm

SIZES = (1 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20)
SLOW_S = 0.05
MESSAGES = 8
WIDTH = 64  # float32 values of a row
REPEATS = {1 << 10: 15, 16 << 10: 11, 128 << 10: 9, 1 << 20: 7, 8 << 20: 3}

Pairs = Mapping[int, int]  # rank -> partner, of ranks that have one


@dataclass(frozen=True, slots=True)
class WireTimes:
    """Seconds by bytes: one way, and both ways at once. cpu: share of them that processors of the rank were busy."""

    one_way: dict[float, float]
    both_ways: dict[float, float]
    cpu: float


class WireProbe:
    """Times exchanges over one communicator."""

    def __init__(self, comm: Comm, device: torch.device, now: Callable[[], float]) -> None:
        self._comm, self._device, self._now, self._key = comm, device, now, 0

    def times(self, pairs: Pairs) -> WireTimes:
        """Of all pairs at once; a rank without a partner meets the others and counts with the slowest of them."""
        both, one, cpu = dict[float, float](), dict[float, float](), list[float]()
        for size in SIZES:
            rows = size // (4 * WIDTH)
            two = [self._exchange(pairs, rows, rows) for _ in range(REPEATS[size] + 1)][1:]
            single = []
            for _ in range(REPEATS[size]):
                there, back = self._exchange(pairs, rows, 0), self._exchange(pairs, 0, rows)
                single.append((there[0] + back[0]) / 2)
            mine = (
                statistics.median(s for s, _ in two),
                statistics.median(single),
                sum(c for _, c in two) / max(1e-9, sum(s for s, _ in two)),
            )
            most = self._most(mine)
            both[size], one[size], share = mine if self._comm.rank in pairs else most
            cpu.append(share)
            if most[0] > SLOW_S:  # a thin link: larger ones go on as a line
                break
        return WireTimes(one, both, min(1.0, cpu[-1]))

    def message_s(self, pairs: Pairs) -> float:
        """Seconds of each further message of an exchange: small ones to the same partner, as if to several."""
        rows = SIZES[0] // (4 * WIDTH)
        one, many = [], []
        for _ in range(REPEATS[SIZES[0]]):
            one.append(self._exchange(pairs, rows, rows)[0])
            many.append(self._exchange(pairs, rows, rows, messages=MESSAGES)[0])
        more_s = statistics.median(many[1:]) - statistics.median(one[1:])
        return self._as_paired(pairs, max(0.0, more_s / (MESSAGES - 1)))

    def hidden(self, pairs: Pairs, work: Callable[[], None]) -> float:
        """Share of an exchange that hides behind local work while both run. work: takes some milliseconds."""
        rows, shares = SIZES[3] // (4 * WIDTH), []
        for _ in range(5):
            alone = self._exchange(pairs, rows, rows)[0]
            began = self._now()
            work()
            own = self._now() - began
            both = self._exchange(pairs, rows, rows, work)[0]
            shares.append((alone + own - both) / max(1e-9, min(alone, own)))
        return self._as_paired(pairs, min(1.0, max(0.0, statistics.median(shares))))

    def _as_paired(self, pairs: Pairs, value: float) -> float:
        """The value of a rank with a partner; one without takes the largest of the others."""
        (most,) = self._most((value if self._comm.rank in pairs else 0.0,))
        return value if self._comm.rank in pairs else most

    def _most(self, values: Sequence[float]) -> tuple[float, ...]:
        """The largest of all ranks, one by one; none may be negative."""
        told = torch.tensor(values, dtype=torch.float64, device=self._device)
        return tuple(self._comm.all_reduce(told, op="max").wait().tolist())

    def _exchange(
        self,
        pairs: Pairs,
        lower_rows: int,
        upper_rows: int,
        work: Callable[[], None] | None = None,
        messages: int = 1,
    ) -> tuple[float, float]:
        """(seconds, CPU seconds); lower_rows: sent by the lower rank of each pair, upper_rows by the upper one.

        All ranks begin together. work: runs while it is in flight. messages: so many exchanges at once.
        """
        self._comm.barrier()
        keys = range(self._key, self._key + messages)
        self._key += messages
        rank, partner = self._comm.rank, pairs.get(self._comm.rank)
        if partner is None:
            if work is not None:
                work()
            return 0.0, 0.0
        sent, received = (lower_rows, upper_rows) if rank < partner else (upper_rows, lower_rows)
        send = torch.zeros((sent, WIDTH), device=self._device)
        rows = {partner: sent} if sent else {}
        back = {partner: received} if received else {}
        began, cpu = self._now(), time.process_time()
        flights = [self._comm.exchange(send, rows, back, key) for key in keys]
        if work is not None:
            work()
        for flight in flights:
            flight.wait()
        return self._now() - began, time.process_time() - cpu


def pairs_of(nodes: Sequence[int], across: bool) -> dict[int, int]:
    """Partners for timing: neighbours of a node, or ranks of different nodes; as many as there are.

    nodes: of each rank.
    """
    left, out = list(range(len(nodes))), dict[int, int]()
    while left:
        rank = left.pop(0)
        partner = next((r for r in left if (nodes[r] != nodes[rank]) == across), None)
        if partner is not None:
            left.remove(partner)
            out |= {rank: partner, partner: rank}
    return out
