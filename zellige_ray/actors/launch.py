"""Launching a run: all is checked before a worker starts, then a driver actor runs it and its events come back."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from zellige_ray.actors.driver import Start
from zellige_ray.config import RunConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.data.encode import prepare
from zellige_ray.data.index import Index
from zellige_ray.data.sampler import SamplerState
from zellige_ray.errors import CheckpointError, PoolError, ZelligeError
from zellige_ray.models.specs import get_spec
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, PhaseEvent
from zellige_ray.placement import get_policy, load_hardware
from zellige_ray.training import checkpoint_files

MAX_CPU_WORKERS = 8
CONTROL = "control"
POLL_S = 0.3
ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that passed every check. folder: where it writes; it exists only for a resumed run. cache: its latents."""

    config: RunConfig
    folder: Path
    cache: Path
    train: Index
    held_out: Index
    text_dim: int
    start: Start


def train(config: RunConfig, on_event: Callable[[Event], None]) -> dict[str, Any]:
    """Runs a training to its end; what `summary.json` says.

    on_event: called in this thread. SIGINT and SIGTERM end the run after the step in flight with a complete checkpoint;
    SIGINT then raises KeyboardInterrupt. Raises ZelligeError by name; bad input before any worker or folder is made.
    """
    prepared = check(config, on_event)
    with ray_session(prepared.config) as (resolved, use_gpu):
        prepared = replace(prepared, config=resolved)
        write_folder(prepared)
        summary = _drive(prepared, use_gpu, on_event)
    return summary


def check(config: RunConfig, on_event: Callable[[Event], None]) -> Prepared:
    """Reads, encodes and compares all that the run needs. Raises Config-, Data-, Model- or CheckpointError."""
    spec = get_spec(config.model.name)
    get_policy(config.placement.policy)
    if config.placement.hardware is not None:
        load_hardware(config.placement.hardware)
    found = checkpoint_files.find(config.resume) if config.resume is not None else None
    cache: LatentCache = prepare(config.data, spec, lambda name, done, total: on_event(PhaseEvent(name, done, total)))
    index, held_out = cache.index().split(config.data.held_out, config.seed)
    if found is None:
        folder, start = _new_folder(config), Start()
    else:
        folder, checkpoint = found
        position = checkpoint_files.read_position(checkpoint)
        checkpoint_files.check(position, config, cache.text_dim, index.fingerprint)
        if position.step >= config.steps:
            raise CheckpointError(
                f"the checkpoint is at step {position.step} of {config.steps}: nothing is left; raise steps"
            )
        start = Start(position.step, SamplerState.from_json(position.sampler), str(checkpoint))
    return Prepared(config, folder, cache.folder.resolve(), index, held_out, cache.text_dim, start)


def _new_folder(config: RunConfig) -> Path:
    parent, stamp = Path(config.folder).resolve(), time.strftime("%Y%m%d-%H%M%S")
    folder, number = parent / f"{config.name}-{stamp}", 1
    while folder.exists():
        number += 1
        folder = parent / f"{config.name}-{stamp}-{number}"
    return folder


def write_folder(prepared: Prepared) -> None:
    """Makes the run folder with its resolved config, and points `latest` to it."""
    folder = prepared.folder
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(prepared.config.model_dump(mode="json"), sort_keys=False)
    (folder / run_folder.CONFIG).write_text(text, encoding="utf-8")
    link, new = folder.parent / "latest", folder.parent / f".latest-{os.getpid()}"
    new.unlink(missing_ok=True)
    new.symlink_to(folder.name)
    new.replace(link)


@contextmanager
def ray_session(config: RunConfig) -> Iterator[tuple[RunConfig, bool]]:
    """The cluster that RAY_ADDRESS names, else an embedded one on this machine only; the config with its worker count.

    Yields (config, use_gpu). An embedded cluster listens on loopback, without tokens unless RAY_AUTH_MODE says so.
    """
    joined = os.environ.get("RAY_ADDRESS")
    if not joined:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    own = not ray.is_initialized()
    if own and joined:
        try:
            ray.init(log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError as fault:
            raise PoolError(f"the Ray cluster at RAY_ADDRESS={joined} can't be reached: {fault}") from fault
    elif own:
        ray.init(
            address="local", num_cpus=max(_cpu_workers(config), os.cpu_count() or 1), include_dashboard=False,
            log_to_driver=False, logging_level=logging.WARNING, _node_ip_address="127.0.0.1",
        )  # fmt: skip
    try:
        yield resolve_workers(config, ray.cluster_resources())
    finally:
        if own:
            ray.shutdown()


def _cpu_workers(config: RunConfig) -> int:
    count = config.workers.count
    return count if isinstance(count, int) else min(MAX_CPU_WORKERS, os.cpu_count() or 1)


def resolve_workers(config: RunConfig, resources: dict[str, float]) -> tuple[RunConfig, bool]:
    """The config with a number of workers, and whether each takes a GPU: it does where the cluster has any.

    Raises PoolError when the cluster has fewer places than `workers.min`.
    """
    gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
    places, kind = (gpus, "GPU") if gpus else (cpus, "CPU")
    wanted = config.workers.count
    count = wanted if isinstance(wanted, int) else (places if gpus else min(MAX_CPU_WORKERS, places))
    if places < config.workers.min:
        raise PoolError(f"the cluster has {places} {kind}s, workers.min is {config.workers.min}: lower it or add nodes")
    if count > places:
        raise PoolError(f"workers.count is {count}, the cluster has {places} {kind}s: lower it or add nodes")
    return config.model_copy(update={"workers": config.workers.model_copy(update={"count": count})}), bool(gpus)


def _drive(prepared: Prepared, use_gpu: bool, on_event: Callable[[Event], None]) -> dict[str, Any]:
    """Starts the driver actor, passes its events on until it ends, and asks it to stop when a signal says so."""
    import ray

    from zellige_ray.actors.driver_host import DriverHost

    actor = ray.remote(num_cpus=0, concurrency_groups={CONTROL: 2})(DriverHost)
    driver = actor.options(name=f"{prepared.folder.name}/driver").remote(prepared, use_gpu)
    result, seen = driver.run.remote(), 0
    with _signals() as asked:
        told = False
        while True:
            if asked and not told:
                told = True
                ray.get(driver.stop.options(concurrency_group=CONTROL).remote(), timeout=ANSWER_TIMEOUT_S)
            done, _ = ray.wait([result], timeout=POLL_S)
            events: list[Event] = ray.get(
                driver.events.options(concurrency_group=CONTROL).remote(seen), timeout=ANSWER_TIMEOUT_S
            )
            seen += len(events)
            for event in events:
                on_event(event)
            if done:
                break
    summary: dict[str, Any] = _result(result)
    if signal.SIGINT in asked:
        raise KeyboardInterrupt
    return summary


def _result(ref: Any) -> dict[str, Any]:
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    try:
        summary: dict[str, Any] = ray.get(ref, timeout=ANSWER_TIMEOUT_S)
        return summary
    except RayTaskError as fault:
        if isinstance(fault.cause, ZelligeError):
            raise type(fault.cause)(str(fault.cause)) from fault
        raise
    except RayActorError as fault:
        raise PoolError(f"the driver actor died: {fault}") from fault


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying of them; a second SIGINT interrupts at once."""
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if number in asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
