"""The page over HTTP: what is served, to whom, and that a run never waits for a watcher."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from zellige_ray.monitor.events import StepEvent
from zellige_ray.monitor.metrics import JsonLines, read_events
from zellige_ray.monitor.page.access import COOKIE, Access
from zellige_ray.monitor.page.server import PORTS, PageServer, listen
from zellige_ray.monitor.page.state import About, PageState
from zellige_ray.monitor.simulation import Simulation

TOKEN = "a token of the cluster"
Answer = tuple[int, dict[str, str], str]
Serve = Callable[..., PageServer]


@pytest.fixture
def simulation(tmp_path: Path) -> Simulation:
    return Simulation(tmp_path / "simulation", 4, steps=4)


@pytest.fixture
def serve(simulation: Simulation) -> Iterator[Callable[..., tuple[PageServer, int]]]:
    servers: list[PageServer] = []

    def start(token: str | None = None, **more: Any) -> tuple[PageServer, int]:
        state = PageState(About("simulation", simulation.folder, 4, "wan", "zellige"))
        server = PageServer(state, Access(token, "127.0.0.1"), simulation.model, **more)
        servers.append(server)
        port = server.start("127.0.0.1", 0)[1]
        assert server.wait_ready(20)
        return server, port

    yield start
    for server in servers:
        server.close()
        assert not server._thread.is_alive()


def get(port: int, path: str = "/", **headers: str) -> Answer:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as line:
        line.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        answer = line.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()


class Watcher:
    """A server-sent event stream, read message by message."""

    def __init__(self, port: int) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self._line.request("GET", "/events")
        self._answer = self._line.getresponse()

    def next(self) -> tuple[str, Any]:
        kind = self._answer.readline().decode().removeprefix("event: ").strip()
        value = json.loads(self._answer.readline().decode().removeprefix("data: "))
        assert self._answer.readline() == b"\n"
        return kind, value

    def close(self) -> None:
        self._answer.close()
        self._line.close()


def test_page_and_json_say_the_same_run_and_load_nothing_from_elsewhere(serve: Any, simulation: Simulation) -> None:
    server, port = serve()
    for event in simulation.events():
        server.see(event)
    status, headers, html = get(port)
    assert status == 200 and "<canvas" in html
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "") and "https://" not in html
    assert "innerHTML" not in html
    status, headers, text = get(port, "/state.json")
    assert (status, headers["content-type"].partition(";")[0]) == (200, "application/json")
    assert headers["cache-control"] == "no-store"
    assert json.loads(text)["now"]["step"] == 4
    assert get(port, "/nothing")[0] == 404


def test_a_watcher_gets_the_state_then_one_message_per_step(serve: Any, simulation: Simulation) -> None:
    server, port = serve()
    events = list(simulation.events())
    watcher = Watcher(port)
    kind, value = watcher.next()
    assert kind == "state" and value["now"] is None
    for event in events:
        server.see(event)
    got = [watcher.next() for _ in events]
    assert [k for k, _ in got].count("step") == sum(isinstance(e, StepEvent) for e in events)
    steps = [v for k, v in got if k == "step"]
    assert [v["now"]["step"] for v in steps] == [1, 2, 3, 4]
    assert steps[0]["loads"]["measured"] != steps[1]["loads"]["measured"], "bars move"
    server.close()
    assert watcher.next()[0] == "end"
    watcher.close()


def test_the_mosaic_is_that_of_the_newest_plan(serve: Any, simulation: Simulation) -> None:
    server, port = serve()
    assert "not in the run folder" in json.loads(get(port, "/plan.json")[2])["none"]
    for event in simulation.events():
        server.see(event)
    tiles = json.loads(get(port, "/plan.json")[2])
    assert tiles["step"] == 4 and tiles["ranks"] == [0, 1, 2, 3]
    columns = [tiles[k] for k in ("row", "start", "stop", "kind", "sequence")]
    assert len({len(c) for c in columns}) == 1
    assert all(0 <= a <= b <= 10_010 for a, b in zip(tiles["start"], tiles["stop"], strict=True))
    assert {tiles["sequences"]["id"][q] for q in tiles["sequence"] if q >= 0} == set(tiles["sequences"]["id"])


@pytest.mark.parametrize("path", ["/", "/state.json", "/plan.json", "/events", "/nothing"])
def test_with_tokens_nobody_reads_without_one(serve: Any, path: str) -> None:
    _, port = serve(TOKEN)
    assert get(port, path)[0] == 401
    assert get(port, path, Authorization="Bearer wrong")[0] == 401
    assert get(port, path, Authorization=TOKEN)[0] == 401
    assert get(port, path, Cookie=f"{COOKIE}=guess")[0] == 401
    assert get(port, f"{path}?token=wrong", Authorization=f"Bearer {TOKEN}")[0] == 401
    assert TOKEN not in get(port, path)[2]


def test_token_in_the_header_or_once_in_the_address(serve: Any) -> None:
    _, port = serve(TOKEN)
    assert get(port, "/state.json", Authorization=f"Bearer {TOKEN}")[0] == 200
    status, headers, _ = get(port, f"/state.json?token={TOKEN.replace(' ', '%20')}&x=1")
    assert (status, headers["location"]) == (303, "/state.json?x=1")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
    assert get(port, "/state.json", Cookie=cookie.partition(";")[0])[0] == 200


def test_a_foreign_name_for_this_machine_gets_nothing(serve: Any) -> None:
    _, port = serve()
    assert get(port, "/state.json", Host="evil.example:80")[0] == 403
    assert get(port, "/state.json", Host=f"localhost:{port}")[0] == 200


def test_token_is_not_compared_with_text_that_is_not_ascii(serve: Any) -> None:
    _, port = serve(TOKEN)
    assert get(port, "/?token=%C3%A4")[0] == 401


def test_a_taken_port_gives_the_next_free_one() -> None:
    with closing(listen("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with closing(listen("127.0.0.1", port)) as second:
            assert port < second.getsockname()[1] < port + PORTS


def test_an_address_of_another_machine_is_an_error_with_its_reason() -> None:
    with pytest.raises(OSError, match=r"no port from 8270 on 203\.0\.113\.9 can be listened on"):
        listen("203.0.113.9", 8270)


def test_a_watcher_that_does_not_read_is_cut_off_and_the_run_goes_on(serve: Any, simulation: Simulation) -> None:
    server, port = serve()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        steps = [simulation.step(n, 0, 4) for n in range(1, 3)]
        end = time.monotonic() + 60
        while not server._watchers and time.monotonic() < end:
            time.sleep(0.01)
        assert server._watchers
        while server._watchers and time.monotonic() < end:
            for step in steps * 10:
                server.see(step)
            get(port, "/state.json")  # the loop has taken them
        assert not server._watchers


def test_a_driver_that_starts_again_shows_what_happened_before(serve: Any, simulation: Simulation) -> None:
    path = simulation.folder / "metrics.jsonl"
    with JsonLines(path, clock=lambda: 1234.0) as sink:
        for event in simulation.events():
            sink.see(event)
    _, port = serve(past=lambda: read_events(path, 10**6))
    value = json.loads(get(port, "/state.json")[2])
    assert value["points"]["step"] == [1, 2, 3, 4] and value["points"]["at_s"][0] == 1234.0


def test_only_the_newest_lines_are_read_of_a_long_file(simulation: Simulation) -> None:
    path = simulation.folder / "metrics.jsonl"
    with JsonLines(path, clock=lambda: 1.0) as sink:
        for event in simulation.events():
            sink.see(event)
    whole = [e for _, e in read_events(path)]
    tail = [e for _, e in read_events(path, path.stat().st_size // 2)]
    assert 0 < len(tail) < len(whole) and whole[-len(tail) :] == tail
    assert [e for _, e in read_events(path, 10**9)] == whole


def test_events_after_the_end_are_let_go(serve: Any, simulation: Simulation) -> None:
    server, _ = serve()
    server.close()
    for event in simulation.events():
        server.see(event)
