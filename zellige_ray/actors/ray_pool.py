"""The pool on Ray: one actor per worker, a control lane beside the work lane, a small actor for the rendezvous."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from zellige_ray.actors.messages import Member, Reply
from zellige_ray.actors.pool import Gathered
from zellige_ray.config import RunConfig, WorkersConfig
from zellige_ray.errors import PoolError, ZelligeError

# glibc returns and faults in packed buffers above 32 MB at every step otherwise: 10 % of a step on a CPU
WORKER_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}
CONTROL, CONTROL_TIMEOUT_S = "control", 5.0


class Rendezvous:
    """Hosts the TCP store through which the ranks of an epoch find each other."""

    def __init__(self) -> None:
        from torch.distributed import TCPStore

        self._host = ray.util.get_node_ip_address()
        self._store = TCPStore(self._host, 0, None, is_master=True, wait_for_workers=False)

    def address(self) -> tuple[str, int]:
        """Host and port; the port is the one that was free."""
        return self._host, self._store.port


class WorkerHost:
    """A `Worker` in its own process; `ping` and `cancel` are called on a lane of their own."""

    def __init__(self, name: str, config: RunConfig, cache_folder: str) -> None:
        import torch

        from zellige_ray.actors.worker import Worker

        torch.set_num_threads(config.workers.threads)
        node = ray.get_runtime_context().get_node_id()
        self._worker = Worker(name, node, config, cache_folder, _connect)

    def call(self, method: str, args: Sequence[Any]) -> Any:
        """Runs a method of the worker."""
        return getattr(self._worker, method)(*args)

    def ping(self) -> int:
        """See `Worker.ping`."""
        return self._worker.ping()

    def cancel(self, epoch: int) -> None:
        """See `Worker.cancel`."""
        self._worker.cancel(epoch)


def _connect(address: tuple[str, int]) -> Any:
    from datetime import timedelta

    from torch.distributed import TCPStore

    host, port = address
    return TCPStore(host, port, None, is_master=False, timeout=timedelta(seconds=30))


@dataclass(slots=True)
class _Heart:
    """When a worker was last pinged, and the ping in flight."""

    sent: float = 0.0
    ref: Any = None


class RayPool:
    """See `Pool`. A worker is lost when Ray says that its actor died, or when it does not answer pings in time."""

    def __init__(self, config: RunConfig, cache_folder: str, use_gpu: bool) -> None:
        self._config, self._cache_folder, self._use_gpu = config, cache_folder, use_gpu
        self._settings: WorkersConfig = config.workers
        self._actors: dict[str, Any] = {}
        self._hearts: dict[str, _Heart] = {}
        self._starting: dict[Any, str] = {}
        self._count = 0
        self._rendezvous = ray.remote(num_cpus=0)(Rendezvous).remote()
        self._address: tuple[str, int] | None = None

    def start(self, count: int, min_count: int, checkpoint: str | None, timeout_s: float) -> list[Member]:
        for _ in range(count):
            self.request(checkpoint)
        end, members = time.monotonic() + timeout_s, []
        while self._starting and time.monotonic() < end:
            members += self.arrived(0.5)
        if len(members) < min_count:
            have = {k: v for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
            raise PoolError(
                f"{len(members)} of {count} workers are ready after {timeout_s:.0f} s, {min_count} are needed "
                f"(free now: {have}); lower workers.count, or raise workers.start_timeout_s"
            )
        return sorted(members, key=lambda m: m.worker)

    def request(self, checkpoint: str | None) -> None:
        name = f"worker-{self._count}"
        self._count += 1
        threads = str(self._settings.threads)
        actor = (
            ray.remote(concurrency_groups={CONTROL: 2})(WorkerHost)
            .options(
                name=f"{self._config.name}/{os.getpid()}/{name}",
                num_cpus=0 if self._use_gpu else 1,
                num_gpus=1 if self._use_gpu else 0,
                runtime_env={"env_vars": {**WORKER_ENVIRONMENT, "OMP_NUM_THREADS": threads}},
            )
            .remote(name, self._config, self._cache_folder)
        )
        self._actors[name] = actor
        self._starting[actor.call.remote("setup", (checkpoint,))] = name

    def arrived(self, wait_s: float = 0.0) -> list[Member]:
        if not self._starting:
            return []
        done, _ = ray.wait(list(self._starting), num_returns=1, timeout=wait_s)
        members = []
        for ref in done:
            name = self._starting.pop(ref)
            try:
                members.append(_value(ref))
            except RayActorError:
                self._actors.pop(name, None)
        return members

    def store(self, epoch: int) -> tuple[str, int]:
        if self._address is None:
            self._address = ray.get(self._rendezvous.address.remote(), timeout=60)
        return self._address

    def submit(self, method: str, args: Mapping[str, Sequence[Any]]) -> dict[Any, str]:
        return {self._actors[w].call.remote(method, tuple(a)): w for w, a in args.items() if w in self._actors}

    def gather(self, call: dict[Any, str], timeout_s: float, first_fault: bool = True) -> Gathered:
        replies: dict[str, Reply] = {}
        lost: dict[str, str] = {}
        waiting, end = dict(call), time.monotonic() + timeout_s
        while waiting and time.monotonic() < end:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=self._settings.ping_interval_s)
            for ref in done:
                worker = waiting.pop(ref)
                try:
                    value = _value(ref)
                    replies[worker] = value if isinstance(value, Reply) else Reply(worker, -1, "ok", value)
                except RayActorError as fault:
                    lost[worker] = str(fault).splitlines()[0]
            for worker, reason in self._silent(waiting.values()).items():
                lost[worker] = reason
                waiting = {ref: w for ref, w in waiting.items() if w != worker}
            if first_fault and (lost or any(r.status == "broken" for r in replies.values())):
                break
        return Gathered(replies, tuple(waiting.values()), lost)

    def cancel(self, workers: Sequence[str], epoch: int) -> None:
        refs = [
            self._actors[w].cancel.options(concurrency_group=CONTROL).remote(epoch)
            for w in workers
            if w in self._actors
        ]
        ray.wait(refs, num_returns=len(refs), timeout=CONTROL_TIMEOUT_S)

    def remove(self, worker: str) -> None:
        actor = self._actors.pop(worker, None)
        self._hearts.pop(worker, None)
        if actor is not None:
            ray.kill(actor, no_restart=True)

    def close(self) -> None:
        for worker in list(self._actors):
            self.remove(worker)
        ray.kill(self._rendezvous, no_restart=True)

    def _silent(self, workers: Iterable[str]) -> dict[str, str]:
        """Workers whose ping has been out for longer than the time-out; sends the pings that are due."""
        now, silent = time.monotonic(), {}
        for worker in set(workers):
            heart = self._hearts.setdefault(worker, _Heart())
            if heart.ref is not None and ray.wait([heart.ref], timeout=0)[0]:
                heart.ref = None  # answered; or dead, which the work lane's own reference says with the reason
            if heart.ref is None and now - heart.sent >= self._settings.ping_interval_s:
                heart.ref, heart.sent = self._actors[worker].ping.options(concurrency_group=CONTROL).remote(), now
            elif heart.ref is not None and now - heart.sent > self._settings.ping_timeout_s:
                silent[worker] = f"no answer to a ping for {now - heart.sent:.1f} s"
        return silent


def _value(ref: Any) -> Any:
    """The result of a finished call; an error inside the worker is raised as what it was where Zellige named it."""
    try:
        return ray.get(ref, timeout=CONTROL_TIMEOUT_S)
    except RayTaskError as fault:
        cause = fault.cause
        if isinstance(cause, ZelligeError):
            raise type(cause)(str(cause)) from fault
        raise ZelligeError(f"a worker failed: {type(cause).__name__}: {cause}\n{fault}") from fault
    except GetTimeoutError as fault:
        raise PoolError(f"a finished result could not be fetched within {CONTROL_TIMEOUT_S} s") from fault
