"""Profile of what all ranks do together besides steps: exchanges, reduction, the small meetings of each step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from zellige_ray.attention.comm import Comm
from zellige_ray.placement import Plan
from zellige_ray.placement.curves import Curve, fit_curve
from zellige_ray.placement.step_curves import WireWork
from zellige_ray.training.profile_pace import usual
from zellige_ray.training.profile_scope import Scope
from zellige_ray.training.profile_wire import WireProbe, WireTimes, pairs_of
from zellige_ray.training.runner import Runner

REDUCTIONS = 5


def together(runner: Runner, comm: Comm | None, scope: Scope, now: Callable[[], float]) -> dict[str, Any]:
    """What ranks do together; alone nothing of it takes time."""
    empty = Curve((0.0,), (0.0,))
    if comm is None or comm.size == 1:
        wire = WireWork(empty, empty)
        return {
            "node": wire, "across": wire, "message_s": 0.0, "hidden": 1.0, "reduce_s": 0.0, "reduced_by": 1,
            "step_s": 0.0, "wire_cpu": 1.0, "reduce_cpu": 1.0,
        }  # fmt: skip
    probe = WireProbe(comm, runner.loader.device, now)
    spans: dict[bool, WireTimes] = {}
    for across in (False, True):
        pairs = pairs_of(scope.nodes, across)
        if pairs:
            spans[across] = probe.times(pairs)
    near = spans.get(False, spans.get(True))
    far = spans.get(True, near)
    assert near is not None and far is not None
    size = runner.loader.device
    operand = torch.zeros((384, 384), device=size)

    def work() -> None:
        for _ in range(4):
            torch.mm(operand, operand)

    pairs = pairs_of(scope.nodes, False) or pairs_of(scope.nodes, True)
    hidden, message_s = probe.hidden(pairs, work), probe.message_s(pairs)
    reduce_s, reduce_cpu = _reduction(runner, comm, now)
    return {
        "node": _wire(near), "across": _wire(far), "message_s": message_s, "hidden": hidden,
        "reduce_s": reduce_s, "reduced_by": comm.size, "step_s": _step_s(comm, runner, now),
        "wire_cpu": near.cpu, "reduce_cpu": reduce_cpu,
    }  # fmt: skip


def _wire(times: WireTimes) -> WireWork:
    return WireWork(fit_curve("exchange one way", times.one_way), fit_curve("exchange both ways", times.both_ways))


def _reduction(runner: Runner, comm: Comm, now: Callable[[], float]) -> tuple[float, float]:
    """Summing the model's gradients over all ranks as a step does, in seconds; the share that processors are busy."""
    layout = runner.state.layout
    seconds, busy = [], []
    for _ in range(REDUCTIONS + 1):
        layout.zero()
        comm.barrier()
        began, cpu = now(), time.process_time()
        layout.reduce(comm)
        seconds.append(now() - began)
        busy.append(time.process_time() - cpu)
    layout.zero()
    return statistics.median(seconds[1:]), min(1.0, sum(busy[1:]) / max(1e-9, sum(seconds[1:])))


def _step_s(comm: Comm, runner: Runner, now: Callable[[], float]) -> float:
    """What a step without any sample takes before its reduction, and its small all-reduce behind it."""
    plan, seconds = Plan(comm.size, (), "profile"), []
    for _ in range(REDUCTIONS + 1):
        comm.barrier()
        began = now()
        reduced_s = runner.gradients(plan, (), 0, comm).idle_s
        before_s = now() - began - reduced_s
        comm.barrier()
        began = now()
        comm.all_reduce(torch.zeros(1, dtype=torch.float64, device=runner.loader.device)).wait()
        seconds.append(before_s + now() - began)
    return usual(seconds[1:])
