"""A worker in its own process: Ray's edge around it, with a control lane beside the work lane, and a lease."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray

from zellige_ray.actors.lease import Lease
from zellige_ray.actors.messages import Standing
from zellige_ray.actors.network import bind_gloo
from zellige_ray.config import RunConfig

STORE_TIMEOUT_S = 30.0


class WorkerHost:
    """`call` runs orders, one after the other; `ping`, `cancel` and `standing` are called on the control lane."""

    def __init__(self, name: str, config: RunConfig, cache_folder: str) -> None:
        import torch

        from zellige_ray.actors.worker import Worker

        torch.set_num_threads(config.workers.threads)
        bind_gloo(ray.util.get_node_ip_address())
        node = ray.get_runtime_context().get_node_id()
        self._worker = Worker(name, node, config, cache_folder, _connect)
        self._lease = Lease(config.workers.lease_s, lambda: os._exit(0))  # now: a slow import is no silence

    def call(self, method: str, args: Sequence[Any]) -> Any:
        """Runs a method of the worker."""
        self._lease.renew()
        return getattr(self._worker, method)(*args)

    def ping(self) -> int:
        """See `Worker.ping`."""
        self._lease.renew()
        return self._worker.ping()

    def cancel(self, epoch: int) -> None:
        """See `Worker.cancel`."""
        self._lease.renew()
        self._worker.cancel(epoch)

    def standing(self) -> Standing | None:
        """See `Worker.standing`."""
        self._lease.renew()
        return self._worker.standing()


def _connect(address: tuple[str, int]) -> Any:
    from datetime import timedelta

    from torch.distributed import TCPStore

    host, port = address
    return TCPStore(host, port, None, is_master=False, timeout=timedelta(seconds=STORE_TIMEOUT_S))
