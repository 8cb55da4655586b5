"""Watching a run: the page and the sinks that live in the driver's process, and what they have to say themselves."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import yaml

from zellige_ray.actors.prepared import Prepared
from zellige_ray.errors import ZelligeError
from zellige_ray.files import write_file
from zellige_ray.models.specs import get_spec
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, NoteEvent, PhaseEvent, RatesEvent
from zellige_ray.monitor.metrics import read_events
from zellige_ray.monitor.page.access import Access
from zellige_ray.monitor.page.server import PageServer
from zellige_ray.monitor.page.state import About, PageState
from zellige_ray.monitor.sinks import SinkRun, sinks
from zellige_ray.monitor.sinks.feed import Feed
from zellige_ray.placement import load_hardware

PAST_BYTES = 4 * 2**20  # of earlier events that a page shows again when its driver was replaced or the run resumed
ANY_HOST = ("0.0.0.0", "::", "")


class Watch:
    """`see` takes every event and returns those that follow from it; it costs the driver microseconds."""

    def __init__(self, prepared: Prepared) -> None:
        config, self._folder = prepared.config, prepared.folder
        self._config = config
        self._model = get_spec(config.model.name).preset(config.model, config.engine.dtype_bytes)
        run = SinkRun(config.name, self._folder, config.model_dump(mode="json"))
        self._feed = Feed(run, {name: sinks[name] for name in config.sinks})
        self._page: PageServer | None = None

    def open(self) -> Iterator[Event]:
        """Writes down the model as plans see it, and starts the page; a run goes on without one, and says why."""
        with suppress(OSError):  # a full disk costs the report its mosaics, not the run
            write_file(self._folder / run_folder.MODEL, yaml.safe_dump(self._model.to_dict(), sort_keys=False))
        page = self._config.page
        if not page.enabled:
            return
        token = _token()
        about = About(
            self._folder.name, self._folder, self._config.steps, self._config.model.name, self._config.placement.policy
        )
        past = partial(self._past, time.time())
        server = PageServer(PageState(about), Access(token, page.host), self._model, past)
        try:
            host, port = server.start(page.host, page.port)
        except OSError as fault:
            yield NoteEvent("warning", f"no live page: {fault.strerror or fault}; set page.host or page.port")
            return
        self._page = server
        machine = socket.gethostname()
        shown = machine if host in ANY_HOST else f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{port}/"
        with suppress(OSError):
            value = {"url": url, "token": token is not None, "pid": os.getpid()}
            write_file(self._folder / run_folder.PAGE, json.dumps(value))
        taken = f" (port {page.port} is taken)" if page.port not in (0, port) else ""
        door = "; add ?token=... once, it is Ray's auth token" if token is not None else ""
        yield NoteEvent(
            "info", f"live page: {url}{taken}{door}; from elsewhere: ssh -L {port}:127.0.0.1:{port} {machine}"
        )

    def see(self, event: Event) -> list[Event]:
        """Passes an event on; what the sinks complain of, and rates when they are known, come back as events."""
        if self._page is not None:
            self._page.see(event)
        self._feed.see(event)
        more: list[Event] = [NoteEvent("warning", text) for text in self._feed.warnings()]
        if isinstance(event, PhaseEvent) and event.name == "profile" and event.done == event.total:
            more += self._rates()
        return more

    def close(self) -> list[Event]:
        """Ends page and sinks; complaints that are left."""
        self._feed.close()
        if self._page is not None:
            self._page.close()
            (self._folder / run_folder.PAGE).unlink(missing_ok=True)
        return [NoteEvent("warning", text) for text in self._feed.warnings()]

    def _rates(self) -> list[Event]:
        try:
            rates = load_hardware(self._folder / run_folder.HARDWARE)
        except ZelligeError:
            return []
        peak = self._config.peak_flops or 0.0
        return [RatesEvent(rates.linear_flops, rates.attention_flops, peak, rates.memory_bytes)]

    def _past(self, now_s: float) -> Iterator[tuple[float, Event]]:
        """Read when somebody iterates: in the page's thread."""
        path = self._folder / run_folder.METRICS
        if path.exists():
            yield from ((at_s, event) for at_s, event in read_events(path, PAST_BYTES) if at_s < now_s - 0.001)


def _token() -> str | None:
    """Ray's token, where this cluster asks for one."""
    from ray import _raylet
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    if not is_token_auth_enabled():
        return None
    raw = _raylet.AuthenticationTokenLoader.instance().get_raw_token()  # type: ignore[attr-defined]
    return raw.decode() if isinstance(raw, bytes) else str(raw)
