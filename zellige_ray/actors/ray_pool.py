"""The pool on Ray: one detached actor per worker, found by its name; pending actors are the request for more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from zellige_ray.actors.hearts import Hearts
from zellige_ray.actors.messages import Member, Reply, Standing
from zellige_ray.actors.nodes import Drains, here
from zellige_ray.actors.pool import Adopted, Gathered
from zellige_ray.actors.prepared import NAMESPACE, RENDEZVOUS, Prepared
from zellige_ray.actors.rendezvous import Rendezvous
from zellige_ray.actors.worker_environment import WORKER_ENVIRONMENT
from zellige_ray.actors.worker_host import WorkerHost
from zellige_ray.errors import PoolError, ZelligeError
from zellige_ray.words import counted

CONTROL, CONTROL_TIMEOUT_S = "control", 5.0
STORE_TIMEOUT_S = 60.0
ADOPT_TIMEOUT_S = 1.5
POLL_S = 0.05


class RayPool:
    """See `Pool`. A worker is lost when Ray says that its actor died, or when it is silent on the control lane."""

    def __init__(self, prepared: Prepared, use_gpu: bool) -> None:
        self._prepared, self._use_gpu = prepared, use_gpu
        self._settings = prepared.config.workers
        self._actors: dict[str, Any] = {}
        self._node: dict[str, str] = {}
        self._starting: dict[Any, str] = {}
        self._failed: dict[str, str] = {}
        self._dead: set[str] = set()  # of those that failed
        self._count = 0
        self._drains = Drains()
        keep = {"namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True, "num_cpus": 0}
        self._rendezvous = (
            ray.remote(Rendezvous)
            .options(
                name=prepared.actor(RENDEZVOUS),
                max_restarts=-1,
                max_task_retries=-1,
                scheduling_strategy=here(),
                **keep,
            )
            .remote(self._settings.lease_s)
        )
        self._hearts = Hearts(self._settings.ping_interval_s, self._settings.ping_timeout_s, self._ping, _answered)
        self._hearts.watch(RENDEZVOUS)
        self._hearts.start()

    def start(
        self, count: int, min_count: int, checkpoint: str | None, timeout_s: float, died: Callable[[str, str], None]
    ) -> list[Member]:
        for _ in range(count - len(self._starting)):
            self.request(checkpoint)
        end, members = time.monotonic() + timeout_s, list[Member]()
        while self._starting and time.monotonic() < end:
            members += self.arrived(0.5)
            for name, reason in self.failed().items():
                if name not in self._dead:
                    raise PoolError(f"{name} could not be set up: {reason}")
                died(name, reason)
                self.request(checkpoint)
            if len(members) >= max(min_count, min(count, self._places())):
                break
        if len(members) < min_count:
            raise PoolError(
                f"{len(members)} of {counted(count, 'worker')} ready after {timeout_s:.0f} s, {min_count} needed "
                f"({self.room()}); lower workers.count, or raise workers.start_timeout_s"
            )
        return sorted(members, key=lambda m: _number(m.worker))

    def adopt(self, expected: Sequence[str], checkpoint: str | None) -> Adopted:
        prefix = self._prepared.actor("worker-")
        for entry in ray.util.list_named_actors(all_namespaces=True):
            if entry["namespace"] == NAMESPACE and entry["name"].startswith(prefix):
                self._actors[entry["name"].rpartition("/")[2]] = ray.get_actor(entry["name"], namespace=NAMESPACE)
        refs = {a.standing.options(concurrency_group=CONTROL).remote(): w for w, a in self._actors.items()}
        self._await([r for r, w in refs.items() if w in expected], ADOPT_TIMEOUT_S)
        done, _ = ray.wait(list(refs), num_returns=max(1, len(refs)), timeout=POLL_S) if refs else ([], [])
        standings, lost = dict[str, Standing](), {w: "is gone" for w in expected if w not in self._actors}
        for ref, worker in refs.items():
            answer = _quietly(ref) if ref in done else None
            if isinstance(answer, Standing):
                standings[worker], self._node[worker] = answer, answer.member.node
            elif worker in expected:
                lost[worker] = "did not answer a driver that started again"
                self.remove(worker)
            else:
                self._starting[self._actors[worker].call.remote("ready", (checkpoint,))] = worker
        for worker in self._actors:
            self._hearts.watch(worker)
            if worker in standings:
                self._hearts.settle(worker)
        numbers = ray.get(self._rendezvous.numbers.remote(), timeout=STORE_TIMEOUT_S)
        self._count = max([numbers.workers, *(_number(w) + 1 for w in [*self._actors, *expected])])
        return Adopted(standings, max([numbers.epoch, *(s.epoch for s in standings.values())]), lost)

    def request(self, checkpoint: str | None) -> None:
        name = f"worker-{self._count}"
        self._count += 1
        threads = str(self._settings.threads)
        actor = (
            ray.remote(concurrency_groups={CONTROL: 2})(WorkerHost)
            .options(
                name=self._prepared.actor(name),
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=0 if self._use_gpu else 1,
                num_gpus=1 if self._use_gpu else 0,
                runtime_env={"env_vars": {**WORKER_ENVIRONMENT, "OMP_NUM_THREADS": threads}},
            )
            .remote(name, self._prepared.config, str(self._prepared.cache))
        )
        self._actors[name] = actor
        self._hearts.watch(name)
        self._starting[actor.call.remote("setup", (checkpoint,))] = name

    def requested(self) -> int:
        return len(self._starting)

    def arrived(self, wait_s: float = 0.0) -> list[Member]:
        if not self._starting:
            return []
        done, _ = ray.wait(list(self._starting), num_returns=1, timeout=wait_s)
        members = []
        for ref in done:
            name = self._starting.pop(ref)
            try:
                member: Member = _value(ref)
                self._node[name] = member.node
                self._hearts.settle(name)
                members.append(member)
            except (RayActorError, ZelligeError) as fault:
                self.remove(name)
                self._failed[name] = str(fault).splitlines()[0]
                if isinstance(fault, RayActorError):
                    self._dead.add(name)
        return members

    def failed(self) -> dict[str, str]:
        failed, self._failed = self._failed, {}
        return failed

    def leaving(self) -> dict[str, str]:
        drains = self._drains.now()
        return {w: drains[n] for w, n in self._node.items() if n in drains and w in self._actors}

    def room(self) -> str:
        free = {k: round(v, 2) for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
        return f"free now: {free or 'nothing'}"

    def store(self, epoch: int) -> tuple[str, int]:
        address: tuple[str, int] = ray.get(self._rendezvous.address.remote(epoch, self._count), timeout=STORE_TIMEOUT_S)
        return address

    def submit(self, method: str, args: Mapping[str, Sequence[Any]]) -> dict[Any, str]:
        return {self._actors[w].call.remote(method, tuple(a)): w for w, a in args.items() if w in self._actors}

    def gather(self, call: dict[Any, str], timeout_s: float, first_fault: bool = True) -> Gathered:
        replies: dict[str, Reply] = {}
        lost: dict[str, str] = {}
        waiting, end = dict(call), time.monotonic() + timeout_s
        while waiting and time.monotonic() < end:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_S)
            for ref in done:
                worker = waiting.pop(ref)
                try:
                    value = _value(ref)
                    self._hearts.hear(worker)
                    replies[worker] = value if isinstance(value, Reply) else Reply(worker, -1, "ok", value)
                except RayActorError as fault:
                    lost[worker] = str(fault).splitlines()[0]
            lost |= {w: reason for w in waiting.values() if (reason := self._hearts.silent(w)) is not None}
            waiting = {ref: w for ref, w in waiting.items() if w not in lost}
            if first_fault and (lost or any(r.status == "broken" for r in replies.values())):
                break
        return Gathered(replies, tuple(waiting.values()), lost)

    def cancel(self, workers: Sequence[str], epoch: int) -> None:
        known = [self._actors[w] for w in workers if w in self._actors]
        for actor in known:
            actor.cancel.options(concurrency_group=CONTROL).remote(epoch)

    def remove(self, worker: str) -> None:
        actor = self._actors.pop(worker, None)
        self._hearts.forget(worker)
        self._node.pop(worker, None)
        if actor is not None:
            ray.kill(actor, no_restart=True)

    def close(self) -> None:
        self._hearts.close()
        for worker in list(self._actors):
            self.remove(worker)
        ray.kill(self._rendezvous, no_restart=True)

    def _ping(self, worker: str) -> Any:
        if worker == RENDEZVOUS:
            return self._rendezvous.ping.remote()
        actor = self._actors.get(worker)
        return actor and actor.ping.options(concurrency_group=CONTROL).remote()

    def _places(self) -> int:
        return int(ray.cluster_resources().get("GPU" if self._use_gpu else "CPU", 0))

    def _await(self, refs: list[Any], timeout_s: float) -> None:
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=timeout_s)


def _number(worker: str) -> int:
    return int(worker.rpartition("-")[2])


def _answered(refs: list[Any]) -> dict[Any, bool]:
    """Of finished pings: was it an answer, or an error?"""
    done = ray.wait(refs, num_returns=len(refs), timeout=0)[0] if refs else []
    return {ref: _quietly(ref) is not None for ref in done}


def _quietly(ref: Any) -> Any:
    """The result of a finished call; None when the actor is gone."""
    try:
        return ray.get(ref, timeout=CONTROL_TIMEOUT_S)
    except RayError:
        return None


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
