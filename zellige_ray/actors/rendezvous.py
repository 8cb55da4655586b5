"""The rendezvous: a small actor with the store through which the ranks of an epoch find each other.

It outlives the driver, and remembers for it the numbers that must never be given twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import ray

from zellige_ray.actors.lease import Lease


@dataclass(frozen=True, slots=True)
class Numbers:
    """The highest epoch that was asked for, and how many workers were named."""

    epoch: int = -1
    workers: int = 0


class Rendezvous:
    """Hosts the TCP store. Started again, it has another port and an empty memory, which is as good."""

    def __init__(self, lease_s: float) -> None:
        from torch.distributed import TCPStore

        self._host = ray.util.get_node_ip_address()
        self._store = TCPStore(self._host, 0, None, is_master=True, wait_for_workers=False)
        self._numbers = Numbers()
        myself = ray.get_runtime_context().current_actor
        self._lease = Lease(lease_s, lambda: ray.kill(myself, no_restart=True))

    def address(self, epoch: int, workers: int) -> tuple[str, int]:
        """Host and port (one that was free); the numbers given out so far are kept."""
        self._lease.renew()
        self._numbers = Numbers(max(epoch, self._numbers.epoch), max(workers, self._numbers.workers))
        return self._host, self._store.port

    def numbers(self) -> Numbers:
        """For a driver that starts again."""
        self._lease.renew()
        return self._numbers

    def ping(self) -> int:
        """The sign of life."""
        self._lease.renew()
        return self._numbers.epoch
