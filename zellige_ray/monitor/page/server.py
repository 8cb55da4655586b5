"""The server of the page: a thread with a loop of its own that watchers connect to; training only hands events over."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zellige_ray.monitor.events import Event, StepEvent
from zellige_ray.monitor.page.access import COOKIE, PARAMETER, Access
from zellige_ray.monitor.page.state import PageState
from zellige_ray.monitor.page.tiles import newest_tiles
from zellige_ray.placement import ModelPreset

if TYPE_CHECKING:
    from aiohttp import web

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PORTS = 50  # tried in a row
MAX_WATCHERS = 64
MAX_UNREAD = 64  # messages to one watcher; a slower one is cut off, connects again and gets the whole state
KEEP_ALIVE_S = 15.0
END_TIMEOUT_S = 3.0
HTML = Path(__file__).with_name("page.html")


class PageServer:
    """`start` takes a port, `see` costs the caller microseconds, `close` ends the thread.

    past: events that happened before, with their times; they are read in the page's own thread.
    """

    def __init__(
        self,
        state: PageState,
        access: Access,
        model: ModelPreset | None = None,
        past: Callable[[], Iterable[tuple[float, Event]]] = tuple,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state, self._access, self._model, self._past, self._clock = state, access, model, past, clock
        self._watchers: set[asyncio.Queue[bytes | None]] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="zellige-page", daemon=True)
        self._socket: socket.socket | None = None
        self._tiles: tuple[tuple[int, str], bytes] | None = None
        self._ended: asyncio.Event | None = None
        self._closed = False

    def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens on `port`, or on the next free one; (host, port) in fact. Raises OSError when none can be had."""
        try:
            self._socket = listen(host, port)
        except OSError:
            self._loop.close()
            raise
        self._thread.start()
        name = self._socket.getsockname()
        return str(name[0]), int(name[1])

    def see(self, event: Event) -> None:
        """Hands an event over; nothing else happens in the caller's thread."""
        if not self._closed:
            with suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._take, event, self._clock())

    def wait_ready(self, timeout_s: float) -> bool:
        """Until requests are answered; only tests want to know."""
        return self._ready.wait(timeout_s)

    def close(self) -> None:
        """Says good-bye to the watchers and ends the thread."""
        if not self._closed and self._socket is not None:
            self._closed = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end)
            self._thread.join(END_TIMEOUT_S)

    # In the page's own thread

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with suppress(OSError, ValueError):  # of files that somebody changed: then the page begins with what comes
                for at_s, event in self._past():
                    self._state.see(event, at_s)
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()
            assert self._socket is not None
            self._socket.close()

    async def _live(self) -> None:
        from aiohttp import web

        self._ended = asyncio.Event()
        if self._closed:
            return
        html, policy = read_page()
        app = web.Application(middlewares=[web.middleware(partial(self._guard, policy))])
        app.router.add_get("/", partial(_text, html, "text/html"))
        app.router.add_get("/state.json", self._whole)
        app.router.add_get("/plan.json", self._plan)
        app.router.add_get("/events", self._events)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await runner.setup()
        await web.SockSite(runner, self._socket).start()  # type: ignore[arg-type]
        self._ready.set()
        await self._ended.wait()
        await runner.cleanup()

    def _end(self) -> None:
        for queue in self._watchers:
            _offer(queue, message("end", {}))
            _offer(queue, None)
        if self._ended is not None:
            self._ended.set()

    def _take(self, event: Event, at_s: float) -> None:
        state = self._state
        state.see(event, at_s)
        if self._watchers:
            is_step = isinstance(event, StepEvent)
            text = message("step", state.step()) if is_step else message("told", state.told())
            for queue in list(self._watchers):
                if not _offer(queue, text):
                    self._watchers.discard(queue)
                    queue.get_nowait()
                    queue.put_nowait(None)

    async def _guard(self, policy: str, request: web.Request, handler: Handler) -> web.StreamResponse:
        from aiohttp import web

        verdict = self._access.check(request.headers, request.cookies, request.query)
        if verdict.status == 200:
            try:
                response = await handler(request)
            except web.HTTPException as answer:
                response = web.Response(status=answer.status, text=f"{answer.status} {answer.reason}\n")
        elif verdict.status == 303:
            rest = {k: v for k, v in request.query.items() if k != PARAMETER}
            response = web.Response(status=303, headers={"Location": str(request.rel_url.with_query(rest))})
            response.set_cookie(COOKIE, self._access.cookie, httponly=True, samesite="Strict", path="/")
        else:
            response = web.Response(status=verdict.status, text=f"{verdict.status}: {verdict.reason}\n")
        if not response.prepared:
            response.headers.update(_headers(policy))
        return response

    async def _whole(self, request: web.Request) -> web.StreamResponse:
        return await _text(json.dumps(self._state.full(), allow_nan=False), "application/json", request)

    async def _plan(self, request: web.Request) -> web.StreamResponse:
        """The mosaic's tiles, made in another thread, once per plan, and only when somebody asks."""
        key = self._state.plan
        if self._tiles is None or self._tiles[0] != key:
            make = partial(newest_tiles, self._state.about.folder, key[0], self._model)
            tiles = await asyncio.get_running_loop().run_in_executor(None, make)
            body = json.dumps(tiles, allow_nan=False, separators=(",", ":")).encode()
            if tiles.get("step") != key[0]:
                return await _text(body.decode(), "application/json", request)  # better next time
            self._tiles = (key, body)
        return await _text(self._tiles[1].decode(), "application/json", request)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        if len(self._watchers) >= MAX_WATCHERS:
            return web.Response(status=503, text=f"503: {MAX_WATCHERS} watchers are connected, that is the limit\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **_headers("default-src 'none'")})
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_UNREAD)
        queue.put_nowait(message("state", self._state.full()))
        self._watchers.add(queue)
        try:
            while True:
                try:
                    text = await asyncio.wait_for(queue.get(), KEEP_ALIVE_S)
                except TimeoutError:
                    text = b": still here\n\n"
                if text is None:
                    break
                await response.write(text)
        except ConnectionError:
            pass  # the watcher left
        finally:
            self._watchers.discard(queue)
        return response


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on `port`, or on the next free one of PORTS; port 0 is any. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in range(port, min(port + PORTS, 65536)) if port else [0]:
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, number))
            one.listen(128)
            one.setblocking(False)
            return one
        except OSError as fault:
            one.close()
            last = fault
    raise OSError(last.errno, f"no port from {port} on {host} can be listened on: {last.strerror or last}")


def read_page() -> tuple[str, str]:
    """The HTML file, and a policy that lets run only the script and the style that are inside it."""
    html = HTML.read_text(encoding="utf-8")
    hashes = {tag: _digest(html, tag) for tag in ("script", "style")}
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy


def message(kind: str, value: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(value, allow_nan=False, separators=(',', ':'))}\n\n".encode()


def _digest(html: str, tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
    assert found is not None, tag
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"


def _headers(policy: str) -> dict[str, str]:
    return {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


async def _text(body: str, content_type: str, request: web.Request) -> web.StreamResponse:
    from aiohttp import web

    return web.Response(text=body, content_type=content_type)


def _offer(queue: asyncio.Queue[bytes | None], item: bytes | None) -> bool:
    try:
        queue.put_nowait(item)
    except asyncio.QueueFull:
        return False
    return True
