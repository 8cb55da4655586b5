"""A Ray head of one's own: `ray start --head --block` as a child process, ended by its pid; and jobs submitted to it.

Nothing of the user's is touched: ports, temp folder and token are its own, and `ray stop` is never called.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Head:
    """A running head. gcs: the address for `ray.init`. environment: of whoever talks to it. folder: its temp folder."""

    dashboard: str
    gcs: str
    environment: dict[str, str]
    folder: Path
    pid: int
    token: str | None
    log: Path = field(repr=False)

    def ray(self, *words: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """One command of Ray's, as a user types it."""
        return subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def get(self, path: str, token: str | None) -> tuple[int, bytes]:
        """Status and body of a GET at the dashboard."""
        request = urllib.request.Request(self.dashboard + path)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as fault:
            with fault:
                return fault.code, b""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@contextmanager
def ray_head(auth: str, num_cpus: int = 2) -> Iterator[Head]:
    """auth: `token` or `disabled`, set on both sides."""
    folder = Path(tempfile.mkdtemp(prefix="zh"))  # short: unix sockets lie in it
    gcs, dashboard, client, agent, metrics = free_ports(5)
    token = secrets.token_hex(32) if auth == "token" else None
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "ZELLIGE_"))}
    environment = kept | {
        "RAY_AUTH_MODE": auth,
        "RAY_worker_niceness": "0",
        "RAY_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "HOME": str(folder / "home"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    (folder / "home").mkdir()
    if token is not None:
        path = folder / "token"
        path.write_text(token)
        path.chmod(0o600)
        environment["RAY_AUTH_TOKEN_PATH"] = str(path)
    log = folder / "head.log"
    words = [
        "start", "--head", "--block", f"--port={gcs}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1",
        f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}",
        f"--metrics-export-port={metrics}", f"--num-cpus={num_cpus}", "--node-ip-address=127.0.0.1",
        f"--temp-dir={folder / 'ray'}", "--disable-usage-stats",
    ]  # fmt: skip
    started = {k: v for k, v in environment.items() if k != "RAY_ADDRESS"}
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *words], env=started, stdout=out, stderr=subprocess.STDOUT
        )
    head = Head(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{gcs}", environment, folder, process.pid, token, log)
    try:
        _wait(head, process)
        yield head
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(head: Head, process: subprocess.Popen[bytes]) -> None:
    """Until jobs can be submitted: the agent behind the dashboard answers later than the dashboard."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            status, body = head.get("/api/jobs/", head.token)
            if status == 200:
                json.loads(body)
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.3)
    raise AssertionError(f"the head did not start: {head.log.read_text()[-3000:]}")
