"""The pool as plain processes of this machine, without Ray: real workers, one core each, on loopback or over a link.

For measurements and rehearsals: nobody joins later, and a worker that dies is not replaced.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from zellige_ray.actors.link import ALONE, INTERFACE, Link
from zellige_ray.actors.messages import Member, Reply
from zellige_ray.actors.network import VARIABLE
from zellige_ray.actors.pool import Adopted, Gathered
from zellige_ray.actors.process_worker import Raised, Setting, Timed
from zellige_ray.actors.worker_environment import WORKER_ENVIRONMENT
from zellige_ray.config import RunConfig
from zellige_ray.errors import PoolError, ZelligeError

START = "import sys; from zellige_ray.actors.process_worker import main; main(int(sys.argv[1]))"
HELLO_TIMEOUT_S, END_TIMEOUT_S = 60.0, 10.0
ERROR_LINES = 5


class ProcessPool:
    """See `Pool`. Also a context: whatever ends it, its processes end."""

    def __init__(
        self,
        config: RunConfig,
        cache_folder: Path,
        scratch: Path,
        linked: bool,
        first: bool = False,
        pinned: bool = True,
    ) -> None:
        """scratch: for logs and rendezvous. linked: two workers, each in a network namespace of its own.

        first: workers run before all other work of the machine, which root alone may ask for. pinned: each on a core of
        its own, where there are enough. `last` is what each worker answered last, with its times.
        """
        self._config, self._cache_folder, self._scratch = config, cache_folder, scratch
        self._linked, self._first, self._pinned = linked, first, pinned
        self.last: dict[str, Timed] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._connections: dict[str, Connection] = {}
        self._cores: dict[str, int | None] = {}
        self.link: Link | None = None

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self, count: int, min_count: int, checkpoint: str | None, timeout_s: float, died: Callable[[str, str], None]
    ) -> list[Member]:
        names = [f"worker-{i}" for i in range(count)]
        for name in names:
            self._spawn(name)
        for name in names:
            if not self._connections[name].poll(HELLO_TIMEOUT_S):
                raise PoolError(f"{name} did not start within {HELLO_TIMEOUT_S:.0f} s")
            self._receive(name)
        if self._linked:
            self.link = Link([self._processes[name].pid for name in names])
        cores = sorted(os.sched_getaffinity(0))
        for i, name in enumerate(names):
            core = self._cores[name] = cores[i] if self._pinned and count <= len(cores) else None
            self._connections[name].send(Setting(name, self._config, str(self._cache_folder), core, self._first))
        gathered = self.gather(self.submit("setup", {name: (checkpoint,) for name in names}), timeout_s)
        if not gathered.complete:
            raise PoolError(f"workers could not be set up in {timeout_s:.0f} s: {gathered.why()}")
        return [gathered.replies[name].value for name in names]

    def adopt(self, expected: Sequence[str], checkpoint: str | None) -> Adopted:
        return Adopted({}, -1, dict.fromkeys(expected, "plain processes are not adopted"))

    def request(self, checkpoint: str | None) -> None:
        return None

    def requested(self) -> int:
        return 0

    def arrived(self, wait_s: float = 0.0) -> list[Member]:
        return []

    def failed(self) -> dict[str, str]:
        return {}

    def leaving(self) -> dict[str, str]:
        return {}

    def room(self) -> str:
        return "plain processes are not replaced"

    def store(self, epoch: int) -> str:
        return str(self._scratch / f"epoch-{epoch}")

    def submit(self, method: str, args: Mapping[str, Sequence[Any]]) -> set[str]:
        orders = {name: ForkingPickler.dumps((method, tuple(values))) for name, values in args.items()}
        with self._beside(list(orders)[-1]) if orders else contextlib.nullcontext():
            for name, order in orders.items():
                with contextlib.suppress(KeyError, OSError):  # gathering says that it is lost
                    self._connections[name].send_bytes(order)
        return set(args)

    @contextlib.contextmanager
    def _beside(self, worker: str) -> Iterator[None]:
        """On that worker's core: a worker that wakes up pushes others off its core, for as long as it has work.

        So only the last one to get an order may be here, or the others would wait for theirs.
        """
        core = self._cores.get(worker)
        if core is None:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def gather(self, call: set[str], timeout_s: float, first_fault: bool = True) -> Gathered:
        replies: dict[str, Reply] = {}
        lost: dict[str, str] = {name: "its process has ended" for name in call if name not in self._connections}
        end, missing = time.monotonic() + timeout_s, call - lost.keys()
        while missing and (left := end - time.monotonic()) > 0:
            ready = wait([self._connections[name] for name in missing], left)
            for name in [n for n in missing if self._connections[n] in ready]:
                missing.discard(name)
                try:
                    value = self._receive(name)
                except PoolError as fault:
                    lost[name] = str(fault)
                    continue
                replies[name] = value if isinstance(value, Reply) else Reply(name, -1, "ok", value)
            if first_fault and (lost or any(r.status == "broken" for r in replies.values())):
                break
        call -= replies.keys() | lost.keys()  # what a later gathering of this call still waits for
        return Gathered(replies, tuple(sorted(missing)), lost)

    def cancel(self, workers: Sequence[str], epoch: int) -> None:
        for name in workers:
            self.submit("cancel", {name: (epoch,)})

    def remove(self, worker: str) -> None:
        connection = self._connections.pop(worker, None)
        if connection is not None:
            connection.close()
        process = self._processes.pop(worker, None)
        if process is not None:
            process.kill()
            process.wait(END_TIMEOUT_S)

    def close(self) -> None:
        for name in list(self._processes):
            self.remove(name)

    def _spawn(self, name: str) -> None:
        ours, theirs = socket.socketpair()
        command = [*(ALONE if self._linked else ()), sys.executable, "-c", START, str(theirs.fileno())]
        environment = {
            **os.environ,
            **WORKER_ENVIRONMENT,
            "OMP_NUM_THREADS": str(self._config.workers.threads),
            VARIABLE: INTERFACE if self._linked else "lo",
        }
        with theirs, self._log(name).open("wb") as log:
            self._connections[name] = Connection(ours.detach())
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                pass_fds=[theirs.fileno()], start_new_session=True,  # Ctrl-C reaches this process, which ends them
            )  # fmt: skip

    def _receive(self, name: str) -> Any:
        """An answer. Raises what an order raised, PoolError with its last words when the process is gone."""
        try:
            value = self._connections[name].recv()
        except (EOFError, OSError):
            lines = self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()
            raise PoolError(" / ".join(lines[-ERROR_LINES:]) or "its process has ended") from None
        if isinstance(value, Raised):
            if isinstance(value.fault, ZelligeError):
                raise value.fault
            raise PoolError(f"{name}: {type(value.fault).__name__}: {value.fault}") from value.fault
        if isinstance(value, Timed):
            self.last[name] = value
            return value.value
        return value  # a hello

    def _log(self, name: str) -> Path:
        return self._scratch / f"{name}.log"
