"""Profile: one rank's seconds for the parts of a step, measured on its device with the model's own blocks.

Compute parts are repeated in turn until their share of the budget is over; what ranks do together is repeated a fixed
number of times.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from zellige_ray.attention.choice import choose_kernel
from zellige_ray.attention.comm import Comm
from zellige_ray.config import RunConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.data.index import SampleMeta
from zellige_ray.errors import DataError
from zellige_ray.models.specs import ModelSpec
from zellige_ray.placement.curves import Curve, fit_curve, fit_surface
from zellige_ray.placement.step_curves import KernelWork, StepCurves, WireWork
from zellige_ray.training.profile_blocks import TEXT, BlockProbe, BlockTimes, Shape
from zellige_ray.training.profile_fits import COPIED, TEXTS, VARIED, copy_work, nothing, token_work, without
from zellige_ray.training.profile_kernels import KernelProbe, time_copies
from zellige_ray.training.profile_pace import MIN_REPEATS, Pace, Progress, usual
from zellige_ray.training.profile_scope import REFERENCE_TEXT, REFERENCE_TOKENS, Probe, Scope
from zellige_ray.training.profile_wire import WireProbe, WireTimes, pairs_of
from zellige_ray.training.runner import Runner
from zellige_ray.training.state import TrainState

PROBES, REDUCTIONS = 4, 5
BLOCK_SHARE, KERNEL_SHARE = 0.55, 0.35  # of the budget
TOKENS = (0, 16, 64, 256, 512, 1024, 2048, 4096, 8192)  # of one piece
FIRST = Shape(1, REFERENCE_TOKENS, REFERENCE_TEXT)  # tells how long the others take
SPARE = 4  # budget for that many times the smallest set of shapes, before layers are left out
PIECES = ((4, 64), (16, 32))  # pieces, tokens of each
QUERIES, KEYS = (8, 32, 128, 512, 2048), (8, 64, 512, 2048)
SCRATCH_VALUES = 8 << 20  # parameters that the optimizer is timed on, at most


def measure(
    runner: Runner,
    spec: ModelSpec,
    config: RunConfig,
    comm: Comm | None,
    scope: Scope,
    progress: Progress = lambda share: None,
) -> StepCurves:
    """The curves of this rank, by the runner's clock; every rank of `comm` calls it at once.

    progress: told the share that is done. Raises ConfigError for a timing that is zero, negative or not finite.
    """
    device, now = runner.loader.device, _clock(runner)
    pace = Pace(comm, device)
    with runner.state.layout.running(comm):
        blocks = _blocks(BlockProbe(runner, spec, now), scope, pace, lambda x: progress(x * BLOCK_SHARE))
    half = config.engine.dtype == "bfloat16"  # attention runs in it, weights are wider
    like = torch.empty(0, dtype=torch.bfloat16 if half else runner.loader.dtype, device=device)
    kernel = choose_kernel(config.engine.kernel, device, like.dtype)
    head_dim = config.model.head_dim
    attention = KernelProbe(kernel, config.model.heads, head_dim, like, config.engine.deterministic, now)
    kernels = _kernels(attention, scope, pace, lambda x: progress(BLOCK_SHARE + x * KERNEL_SHARE))
    copied = [time_copies(COPIED, config.model.heads, head_dim, like, now) for _ in range(5)]
    update, parameters = _update(runner, config, now)
    together = _together(runner, comm, scope, now)
    forward = token_work("block forward", blocks, "forward_s")
    backward = token_work("block backward", blocks, "backward_s")
    full = config.model.checkpointing != "none"
    progress(1.0)
    return StepCurves(
        load=token_work("loading", blocks, "load_s", _reading(runner)),
        outside_forward=token_work("embedders and head, forward", blocks, "outside_forward_s"),
        outside_backward=token_work("embedders and head, backward", blocks, "outside_backward_s"),
        block_forward=forward,
        block_recompute=forward if full else nothing(),
        block_backward=without(backward, forward) if full else backward,
        whole=kernels[True],
        units=kernels[False],
        copies=copy_work(copied, usual([t.exchange_s for t in blocks[Shape(0, 0)]])),
        round_s=usual([t.round_s for t in blocks[Shape(0, 0)]]),
        update=update,
        parameters=parameters,
        width=config.model.heads * config.model.head_dim,
        heads=config.model.heads,
        text_first=spec.joint != "img",
        sharded=runner.state.sharded,
        **together,
    )


def probe(runner: Runner, spec: ModelSpec, comm: Comm | None) -> Probe:
    """A short look at this rank's device, the same work on every rank of `comm`."""
    device, blocks = runner.loader.device, BlockProbe(runner, spec, _clock(runner))
    with runner.state.layout.running(comm):
        blocks.time(FIRST)
        blocks.shorten(0.0)
        times = [blocks.time(FIRST) for _ in range(PROBES)]
    return Probe(device_name(device), torch.__version__, min(t.forward_s + t.backward_s for t in times))


def device_name(device: torch.device) -> str:
    """The maker's name of a device, for people and for keys."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} processors"


def _clock(runner: Runner) -> Callable[[], float]:
    """The runner's clock, with all of the device's work done."""
    device = runner.loader.device

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return runner.now()

    return now


def _blocks(probe: BlockProbe, scope: Scope, pace: Pace, progress: Progress) -> dict[Shape, list[BlockTimes]]:
    """Times of shapes: growing as far as the rank's tokens and the budget go, then pieces, then captions."""
    budget_s = scope.budget_s * BLOCK_SHARE
    for shape in (Shape(0, 0), FIRST):
        probe.time(shape)
    began = time.perf_counter()
    probe.time(FIRST)
    took = pace.slowest(time.perf_counter() - began)
    others = sum(count * n for count, n in PIECES) + 3 * VARIED
    fewest = sum(TOKENS[: TOKENS.index(FIRST.tokens) + 2]) + others
    afford = budget_s / MIN_REPEATS / took * FIRST.tokens  # tokens per turn
    afford *= probe.shorten(afford / fewest / SPARE)
    tokens = [
        n
        for i, n in enumerate(TOKENS)
        if i < 5 or (TOKENS[i - 1] < scope.max_tokens and sum(TOKENS[: i + 1]) + others <= afford)
    ]
    shapes = [Shape(1 if n else 0, n) for n in tokens]
    shapes += [Shape(count, n) for count, n in PIECES]
    shapes += [Shape(1, VARIED, text) for text in (TEXT, *TEXTS)]
    shapes = list(dict.fromkeys(shapes))
    runs = pace.repeat([partial(probe.time, shape) for shape in shapes], budget_s, progress)
    return dict(zip(shapes, runs, strict=True))


def _kernels(probe: KernelProbe, scope: Scope, pace: Pace, progress: Progress) -> dict[bool, KernelWork]:
    """Attention of whole segments and of units, on a grid that ends where a rank's tokens do."""
    limit = max(scope.max_tokens, 128)
    grid = [(q, k) for q in QUERIES if q <= 2 * limit for k in KEYS if k <= 2 * limit]
    wanted = [(whole, q, k) for q, k in grid for whole in (True, False)]
    probes: list[Callable[[], Any]] = [partial(probe.time, q, k, w) for w, q, k in wanted]
    probes += [partial(probe.time_calls, w) for w in (True, False)]
    *runs, whole_calls, unit_calls = pace.repeat(probes, scope.budget_s * KERNEL_SHARE, progress)
    out: dict[bool, KernelWork] = {}
    for whole, calls in ((True, whole_calls), (False, unit_calls)):
        surfaces = []
        calls_s = [usual([c[way] for c in calls]) for way in (0, 1)]
        for way, name in enumerate(("forward", "backward")):
            points = {}
            for (w, q, k), run in zip(wanted, runs, strict=True):
                if w == whole:
                    seconds = usual([t[way] for t in run])
                    points[float(q), float(k)] = max(seconds - calls_s[way], seconds / 2) / run[0][2]
            surfaces.append(fit_surface(f"attention {name}", points))
        out[whole] = KernelWork(surfaces[0], surfaces[1], *calls_s)
    return out


def _update(runner: Runner, config: RunConfig, now: Callable[[], float]) -> tuple[Curve, int]:
    """Seconds of applying a step over parameters, timed on copies of the first ones; and how many there are."""
    trained = [p for p in runner.state.module.parameters() if p.requires_grad]
    points: dict[float, float] = {}
    for limit in (1, SCRATCH_VALUES):
        taken = list(_first(trained, limit))
        scratch = TrainState(nn.ParameterList([nn.Parameter(p.detach().clone()) for p in taken]), config.optimizer, 10)
        seconds = []
        for step in range(1, 6):
            began = now()
            scratch.layout.zero()
            scratch.apply(step)
            seconds.append(now() - began)
        points[float(sum(p.numel() for p in taken))] = usual(seconds[1:])
    return fit_curve("optimizer", points), sum(p.numel() for p in trained)


def _first(parameters: Sequence[nn.Parameter], limit: int) -> Iterator[nn.Parameter]:
    count = 0
    for p in parameters:
        if count and count + p.numel() > limit:
            return
        count += p.numel()
        yield p


def _together(runner: Runner, comm: Comm | None, scope: Scope, now: Callable[[], float]) -> dict[str, Any]:
    """What ranks do together; alone nothing of it takes time."""
    empty = Curve((0.0,), (0.0,))
    if comm is None or comm.size == 1:
        wire = WireWork(empty, empty)
        return {
            "node": wire, "across": wire, "hidden": 1.0, "wander": 0.0, "reduce_s": 0.0, "reduced_by": 1,
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
    hidden, wander = probe.hidden(pairs, work), probe.wander(pairs, work)
    reduce_s, reduce_cpu = _reduction(runner, comm, now)
    return {
        "node": _wire(near), "across": _wire(far), "hidden": hidden, "wander": wander,
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
    """Two small all-reduces: do ranks hold one plan, and what is the loss of all."""
    seconds = []
    for _ in range(8):
        comm.barrier()
        began = now()
        for _ in range(2):
            comm.all_reduce(torch.zeros(1, dtype=torch.float64, device=runner.loader.device)).wait()
        seconds.append(now() - began)
    return usual(seconds)


def _reading(runner: Runner) -> float:
    """Seconds to read a sample's latents and caption from the cache; 0 where there is none to read."""
    cache = runner.loader.cache
    if not isinstance(cache, LatentCache):
        return 0.0
    try:
        samples: Sequence[SampleMeta] = cache.index().samples[:4]
        seconds = []
        for sample in [*samples] * 2:
            began = time.perf_counter()
            cache.read_frames(sample, 0, 1)
            cache.read_text(sample)
            seconds.append(time.perf_counter() - began)
        return usual(seconds)
    except DataError:
        return 0.0


__all__ = ["device_name", "measure", "probe"]
