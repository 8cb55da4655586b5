"""Here: what this worker process was given, and its one session; Ray Train runs one training function per process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zellige_ray.errors import ConfigError

if TYPE_CHECKING:
    from zellige_ray.integrations.session import Session, Settings

given: tuple[Settings, Any] | None = None
session: Session | None = None


def install(settings: Settings, coordinator: Any) -> None:
    """Called in the worker by the backend, before training begins."""
    global given, session
    given, session = (settings, coordinator), None


def current() -> Session:
    """The session of this process, opened when it is first asked for."""
    global session
    if session is None:
        if given is None:
            raise ConfigError(
                "there is no Zellige session here: give TorchTrainer torch_config=ZelligeConfig(), "
                "and call this in its training function"
            )
        session = _open(*given)
    return session


def close(finished: bool) -> None:
    """Ends the session: the training function has returned, or raised. finished: no newcomer is needed any more."""
    global session
    if session is not None and given is not None:
        import ray

        session.close()
        ray.get(given[1].leave.remote(session.worker, finished), timeout=given[0].timeout_s)
    session = None


def _open(settings: Settings, coordinator: Any) -> Session:
    import logging
    from datetime import timedelta

    import ray
    import ray.train.torch
    import torch
    from torch.distributed import TCPStore

    from zellige_ray.actors.identity import memory_bytes
    from zellige_ray.actors.network import bind_gloo
    from zellige_ray.integrations.meeting import Arrival, Seat, Verdict
    from zellige_ray.integrations.session import Session

    bind_gloo(ray.util.get_node_ip_address())
    device = ray.train.torch.get_device() if torch.cuda.is_available() else torch.device("cpu")
    context, place = ray.get_runtime_context(), ray.train.get_context()
    memory = memory_bytes(device) // (1 if device.type == "cuda" else max(1, place.get_local_world_size()))
    host, port = ray.get(coordinator.address.remote(), timeout=settings.timeout_s)
    store = TCPStore(host, port, None, is_master=False, timeout=timedelta(seconds=settings.comm_timeout_s))

    def meet(arrival: Arrival) -> Verdict:
        verdict: Verdict = ray.get(coordinator.meet.remote(arrival), timeout=settings.timeout_s + 30)
        return verdict

    seat = Seat(context.get_actor_id(), context.get_node_id(), memory)
    return Session(settings, seat, device, meet, store, logging.getLogger("zellige").info)
