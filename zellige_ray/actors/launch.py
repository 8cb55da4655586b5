"""Launching a run: all is checked before a worker starts, then a driver actor runs it and its events come back."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from zellige_ray.actors.folder import left_behind, new_folder, point_latest, write_folder
from zellige_ray.actors.names import check_urls, look_up
from zellige_ray.actors.prepared import DRIVER, NAMESPACE, Prepared, Start
from zellige_ray.actors.session import end_actors, ray_session
from zellige_ray.config import RunConfig
from zellige_ray.data.gather import gather
from zellige_ray.data.index import Index
from zellige_ray.data.report import EncodeReport
from zellige_ray.data.sampler import SamplerState
from zellige_ray.errors import CheckpointError, ModelError, PoolError, ZelligeError
from zellige_ray.models.architecture import resolve_run
from zellige_ray.models.specs import ModelSpec, get_spec
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, NoteEvent, PhaseEvent, StepEvent
from zellige_ray.placement import Cluster, CostModel, Sequence, load_hardware, make_plan
from zellige_ray.training import checkpoint_files
from zellige_ray.training.remote_runs import fetch_run
from zellige_ray.urls import is_url

CONTROL = "control"
POLL_S = 0.3
ANSWER_TIMEOUT_S = 60.0


def train(config: RunConfig, on_event: Callable[[Event], None]) -> dict[str, Any]:
    """Runs a training to its end; what `summary.json` says.

    on_event: called in this thread. SIGINT and SIGTERM end the run after the step in flight with a complete checkpoint,
    before the first step at once; SIGINT then raises KeyboardInterrupt. Raises ZelligeError by name; bad input before
    any worker or folder is made.
    """
    from zellige_ray.training.optimizers import check_device

    prepared = check(config, on_event)
    with ray_session(prepared.config, lambda text: on_event(NoteEvent("warning", text))) as (resolved, use_gpu):
        prepared = replace(prepared, config=resolved)
        check_policy(prepared)
        check_device(resolved.optimizer, "cuda" if use_gpu else "cpu")
        write_folder(prepared)
        stopped = True
        try:
            summary = _drive(prepared, use_gpu, on_event)
            stopped = bool(summary["stopped"])
        finally:
            text = left_behind(prepared) if stopped else ""
            if text:
                on_event(NoteEvent("info", text))
    return summary


def check(config: RunConfig, on_event: Callable[[Event], None]) -> Prepared:
    """Reads, encodes and compares all that the run needs. Raises Config-, Data-, Model- or CheckpointError."""
    from zellige_ray.models.making import check_model

    check_urls(config)
    config = resolve_run(config)
    if config.resume is not None and is_url(config.resume):
        fetched = fetch_run(config.resume, Path(config.folder).resolve())
        config = config.model_copy(update={"resume": str(fetched)})
    spec, found = look_up(config)
    notes: list[NoteEvent] = []

    def told(name: str, report: EncodeReport) -> None:
        whose = f"{name}: " if name else ""
        notes.extend(NoteEvent("info", f"{whose}{text}") for text in report.headlines())
        notes.extend(NoteEvent("warning", f"{whose}{text}") for text in report.warnings())

    latents = gather(
        config.data,
        spec,
        progress=lambda name, done, total: on_event(PhaseEvent(name, done, total)),
        told=told,
    )
    text_dim = latents.cache.text_dim
    check_latents(latents.index, spec)
    check_model(config.model, text_dim)
    index, held_out = latents.index.split(config.data.held_out, config.seed)
    if found is None:
        folder, start = new_folder(config), Start()
    else:
        folder, checkpoint = found
        notes += [NoteEvent("warning", text) for text in checkpoint_files.damages(folder, behind=checkpoint)]
        position = checkpoint_files.read_position(checkpoint)
        checkpoint_files.check(position, config, text_dim, index.fingerprint)
        if position.step >= config.steps:
            raise CheckpointError(
                f"the checkpoint is at step {position.step} of {config.steps}: nothing is left; raise steps"
            )
        start = Start(position.step, SamplerState.from_json(position.sampler), str(checkpoint))
    metrics = folder / run_folder.METRICS
    before = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    token = secrets.token_hex(3)
    cache = latents.cache.folder.resolve()
    return Prepared(config, folder, cache, index, held_out, text_dim, start, token, before, tuple(notes))


def check_latents(index: Index, spec: ModelSpec) -> None:
    """Raises ModelError, naming the sample, when the model can't take its latents."""
    for sample in index.samples:
        try:
            spec.tokens(sample.latent_shape)
        except ModelError as fault:
            raise ModelError(f"sample {sample.id}: {fault} (model.name, data.source)") from fault


def check_policy(prepared: Prepared) -> None:
    """Raises PlanError when the policy can't plan for this many ranks, by one sample and more memory than there is."""
    config, sample = prepared.config, prepared.train.samples[0]
    spec, count = get_spec(config.model.name), config.workers.count
    assert isinstance(count, int)
    cluster = Cluster((0,) * count, (1 << 50,) * count, (1.0,) * count)
    cost = CostModel(load_hardware("cpu"), spec.preset(config.model, dtype_bytes=4))
    row = Sequence(sample.id, spec.tokens(sample.latent_shape), sample.text_tokens)
    make_plan([row], cluster, cost, config.placement.policy)


def _drive(prepared: Prepared, use_gpu: bool, on_event: Callable[[Event], None]) -> dict[str, Any]:
    """Starts the driver actor, passes its events on until it ends, and asks it to stop when a signal says so.

    All actors are detached, so that they outlive each other; none outlives this call.
    """
    import ray

    from zellige_ray.actors.driver_host import DriverHost
    from zellige_ray.actors.nodes import here

    options = {"name": prepared.actor(DRIVER), "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
    actor = ray.remote(concurrency_groups={CONTROL: 2})(DriverHost)
    try:
        driver = actor.options(max_restarts=-1, max_task_retries=-1, scheduling_strategy=here(), **options).remote(
            prepared, use_gpu
        )
        return _watch(driver, prepared, on_event)
    finally:
        end_actors(prepared)


def _watch(driver: Any, prepared: Prepared, on_event: Callable[[Event], None]) -> dict[str, Any]:
    """Asking for events is the sign of life that the driver waits for. `latest` is this run from its first step on."""
    import ray
    from ray.exceptions import RayActorError

    result, seen, begun = driver.run.remote(), 0, False
    patience_s = max(ANSWER_TIMEOUT_S, prepared.config.workers.start_timeout_s)  # its process has to start first
    with _signals() as asked:
        while begun or not asked:
            done, _ = ray.wait([result], timeout=POLL_S)
            call = driver.events.options(concurrency_group=CONTROL).remote(seen, bool(asked))
            try:
                events = _answer(call, () if begun else asked, patience_s)
            except RayActorError:
                break  # the result says why
            patience_s = ANSWER_TIMEOUT_S
            seen += len(events)
            for event in events:
                if isinstance(event, StepEvent) and not begun:
                    begun, fault = True, point_latest(prepared.folder)
                    if fault:
                        on_event(NoteEvent("warning", fault))
                on_event(event)
            if done:
                break
    try:
        if asked and not begun:
            raise ZelligeError("asked to stop before the first step")
        return _result(result)
    finally:
        if signal.SIGINT in asked:
            raise KeyboardInterrupt  # also where it had to stop waiting for workers


def _answer(call: Any, asked: Collection[int], timeout_s: float) -> list[Event]:
    """The events; none as soon as a signal is among `asked`. Raises PoolError when the driver is silent."""
    import ray

    end = time.monotonic() + timeout_s
    while not ray.wait([call], timeout=POLL_S)[0]:
        if asked:
            return []
        if time.monotonic() > end:
            raise PoolError(f"the driver did not answer for {timeout_s:.0f} s: see its log")
    events: list[Event] = ray.get(call)
    return events


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
    """Collects SIGINT and SIGTERM instead of dying of them; a second SIGINT interrupts at once.

    In another thread than the main one nothing is collected: Python delivers signals there.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

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
