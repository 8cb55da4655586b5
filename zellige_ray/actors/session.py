"""The session: the Ray cluster that a run joins or starts, and the end of all its detached actors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from zellige_ray.actors.network import unreachable
from zellige_ray.actors.prepared import DRIVER, NAMESPACE, Prepared
from zellige_ray.config import RunConfig
from zellige_ray.errors import PoolError
from zellige_ray.words import counted

MAX_CPU_WORKERS = 8
CONNECT_WITHIN_S = 10.0  # a head may be starting
CROWDED = 4  # workers per core; more of them than this mostly wait for each other
WORKER_BYTES = 400 << 20  # of a worker's process before it holds a model
# Ray runs workers 15 nicer than their parent: beside any other busy process they would hardly run, or answer a ping
SYSTEM_CONFIG = {"worker_niceness": 0}


@contextmanager
def ray_session(config: RunConfig, warn: Callable[[str], None] = lambda text: None) -> Iterator[tuple[RunConfig, bool]]:
    """The cluster that RAY_ADDRESS names, else an embedded one on this machine only; the config with its worker count.

    Yields (config, use_gpu). An embedded cluster listens on loopback, without tokens unless RAY_AUTH_MODE says so.
    warn: told of more workers than this machine is good for.
    """
    joined = os.environ.get("RAY_ADDRESS")
    if not joined:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    own = not ray.is_initialized()
    if own:
        _hush()
    if own and joined:
        why = unreachable(joined, CONNECT_WITHIN_S)
        if why is not None:
            raise PoolError(
                f"the Ray cluster at RAY_ADDRESS={joined} can't be reached: {why}; is its head running, the address "
                "right? unset RAY_ADDRESS to run on this machine alone"
            )
        try:
            ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError as fault:
            raise PoolError(f"the Ray cluster at RAY_ADDRESS={joined} can't be reached: {fault}") from fault
    elif own:
        ray.init(
            address="local", num_cpus=max(_cpu_workers(config), os.cpu_count() or 1), include_dashboard=False,
            namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING, _node_ip_address="127.0.0.1",
            _system_config=SYSTEM_CONFIG,
        )  # fmt: skip
    try:
        resolved, use_gpu = resolve_workers(config, ray.cluster_resources(), grows=bool(joined))
        if own and not joined and not use_gpu:
            memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            text = crowding(_cpu_workers(resolved), os.cpu_count() or 1, memory_bytes)
            if text:
                warn(text)
        yield resolved, use_gpu
    finally:
        if own:
            ray.shutdown()


def crowding(workers: int, cores: int, memory_bytes: int) -> str:
    """What is wrong with so many workers on one machine; empty when nothing is."""
    need = workers * WORKER_BYTES
    if workers <= CROWDED * cores and need <= memory_bytes / 2:
        return ""
    return (
        f"workers.count is {workers}: this machine has {counted(cores, 'CPU core')} and "
        f"{memory_bytes / 2**30:.1f} GiB, the processes alone take about {need / 2**30:.1f} GiB; lower workers.count"
    )


def _hush() -> None:
    """What Ray's own processes report of a death is not printed amid the run's lines: its events say the same.

    Ray writes it to stdout, log_to_driver or not, where a program would read JSON. Ray has no public switch for it.
    """
    from ray._private import worker

    worker.listen_error_messages = lambda *given: None


def _cpu_workers(config: RunConfig) -> int:
    count = config.workers.count
    return count if isinstance(count, int) else min(MAX_CPU_WORKERS, os.cpu_count() or 1)


def resolve_workers(config: RunConfig, resources: dict[str, float], grows: bool = False) -> tuple[RunConfig, bool]:
    """The config with a number of workers, and whether each takes a GPU: it does where the cluster has any.

    grows: nodes may join later, so that more workers may be asked for than there is room for now. Raises PoolError when
    the cluster has fewer places than `workers.min`, or, unless it grows, than `workers.count`.
    """
    gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
    places = gpus or cpus
    there = counted(places, "GPU" if gpus else "CPU")
    wanted = config.workers.count
    count = wanted if isinstance(wanted, int) else (places if gpus else min(MAX_CPU_WORKERS, places))
    if places < config.workers.min and not grows:
        raise PoolError(f"the cluster has {there}, workers.min is {config.workers.min}: lower it or add nodes")
    if count > places and not grows:
        raise PoolError(f"workers.count is {count}, the cluster has {there}: lower it or add nodes")
    count = max(count, config.workers.min)
    return config.model_copy(update={"workers": config.workers.model_copy(update={"count": count})}), bool(gpus)


def end_actors(prepared: Prepared, myself: str | None = None) -> None:
    """Ends every actor of a launch, whoever made it: the driver first, but last when it is the caller.

    myself: the role of the calling actor.
    """
    import ray

    prefix, driver = prepared.actor(""), prepared.actor(DRIVER)
    names = [e["name"] for e in ray.util.list_named_actors(all_namespaces=True) if e["namespace"] == NAMESPACE]
    mine = prepared.actor(myself) if myself else None
    for name in sorted((n for n in names if n.startswith(prefix)), key=lambda n: (n == mine, n != driver)):
        _end(ray, name)


def _end(ray: Any, name: str) -> None:
    try:
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
    except ValueError:  # gone by itself
        return
