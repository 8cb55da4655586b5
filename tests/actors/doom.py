"""Doom: workers, and drivers, that die in a named phase of a named step of a run with real workers as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.actors.local_pool import Killed, LocalPool
from zellige_ray.actors.planning import Planner
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.engine import AttentionEngine
from zellige_ray.attention.layer import AttendLayer
from zellige_ray.data.ledger import Ledger
from zellige_ray.training import state
from zellige_ray.training.layouts.layout import Layout
from zellige_ray.training.state import TrainState

DRIVER = "driver"
# worker -> (phase, step): it dies there, in that step or the first one after it that has the phase; a step counts as
# over for a worker once it has applied it, so that `start` and `apply` are those of the order that follows
Timetable = Mapping[str, tuple[str, int]]
# in their order within a step; then those of an epoch that forms; then the driver's own, in which a worker may die too
STEP = ("start", "forward", "exchange", "backward", "reduce", "reduced", "voted", "apply")
REGROUP = ("join", "take_over")
BESIDE = ("planning", "commit")
DRIVERS = ("append", "appended")


class Died(BaseException):
    """SIGKILL to the driver: nothing of it goes on."""


class Doom:
    """Strikes by a timetable. struck: phases, in the order in which somebody died there."""

    def __init__(self) -> None:
        self.timetable: dict[str, tuple[str, int]] = {}
        self.drivers: list[tuple[str, int]] = []
        self.struck: list[str] = []
        self.pool: Pool | None = None

    def strike(self, phase: str) -> None:
        """Ends the worker whose thread this is, when it is its turn."""
        worker = threading.current_thread().name.partition("_")[0]
        if self.due(phase, worker):
            self._done(phase, worker)
            raise Killed

    def strike_from_outside(self, phase: str) -> None:
        """Ends workers while the driver does something: they answer no further call."""
        assert self.pool is not None
        for worker in [w for w in self.timetable if self.due(phase, w)]:
            self._done(phase, worker)
            self.pool.gone.add(worker)

    def strike_driver(self, phase: str, step: int) -> None:
        """Ends the driver, whose thread this is."""
        if self.drivers and self.drivers[0][0] == phase and step >= self.drivers[0][1]:
            self.struck.append(self.drivers.pop(0)[0])
            raise Died

    def due(self, phase: str, worker: str) -> bool:
        wanted, step = self.timetable.get(worker, ("", 0))
        if self.pool is None or wanted != phase or worker not in self.pool.workers:
            return False
        return self.pool.workers[worker]._state.step + 1 >= step

    def _done(self, phase: str, worker: str) -> None:
        del self.timetable[worker]
        self.struck.append(phase)


class Pool(LocalPool):
    """Workers that die by the timetable. gone: those that died while nobody looked."""

    def __init__(self, doom: Doom, *args: Any) -> None:
        super().__init__(*args)
        self.doom, self.gone = doom, set[str]()
        doom.pool = self

    def _run(self, name: str, method: str, args: tuple[Any, ...]) -> Any:
        try:
            if name in self.gone:
                raise Killed
            if method in ("step", "join"):
                self.doom.strike({"step": "start"}.get(method, method))
            answer = super()._run(name, method, args)
            if method == "step":
                self.doom.strike("voted")  # and its vote is lost with it
            return answer
        except Killed:
            self.workers[name].close()
            raise


@contextmanager
def planted() -> Iterator[Doom]:
    """A doom in every phase, for as long as it lasts."""
    doom = Doom()
    with pytest.MonkeyPatch.context() as patch:

        def before(owner: Any, method: str, strike: Callable[[Any], None]) -> None:
            original = getattr(owner, method)

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                strike(args)
                return original(*args, **kwargs)

            static = isinstance(vars(owner)[method], staticmethod)
            patch.setattr(owner, method, staticmethod(wrapped) if static else wrapped)

        def reducing(args: Any) -> None:
            layout, comm = args
            if comm is not None and doom.due("reduce", threading.current_thread().name.partition("_")[0]):
                whole = len(layout.place.members) == 1
                first = layout.units[0].own_grad if whole else torch.zeros(1, dtype=torch.float64)
                comm.all_reduce(first)  # it has begun, and its peers wait for the rest
            doom.strike("reduce")

        def appending(args: Any) -> None:
            if args[1].event is None:
                doom.strike_driver("append", args[1].step)
                doom.strike_from_outside("commit")

        before(AttentionEngine, "attend", lambda _: doom.strike("forward"))
        before(AttendLayer, "backward", lambda _: doom.strike("backward"))
        before(Comm, "exchange", lambda _: doom.strike("exchange"))
        before(state, "move", lambda _: doom.strike("take_over"))
        before(Layout, "reduce", reducing)
        before(Layout, "norm", lambda _: doom.strike("reduced"))
        before(TrainState, "apply", lambda _: doom.strike("apply"))
        before(Planner, "plan", lambda _: doom.strike_from_outside("planning"))
        before(Ledger, "append", appending)
        append = Ledger.append

        def appended(self: Ledger, record: Any) -> None:
            append(self, record)
            if record.event is None:
                doom.strike_driver("appended", record.step)

        patch.setattr(Ledger, "append", appended)
        patch.setattr("zellige_ray.actors.crew.Crew.close", lambda self: None)  # a dead driver closes nothing
        yield doom
