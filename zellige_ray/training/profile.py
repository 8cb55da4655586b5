"""Profile: one rank's seconds for the parts of a step, measured on its device with the model's own blocks.

Compute parts and trials of shared samples are repeated in turn until their share of the budget is over; what else
ranks do together is repeated a fixed number of times.
"""

from __future__ import annotations

import os
import platform
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
from zellige_ray.placement.step_curves import KernelWork, StepCurves
from zellige_ray.training.profile_blocks import TEXT, BlockProbe, BlockTimes, Shape
from zellige_ray.training.profile_fits import COPIED, TEXTS, VARIED, copy_work, in_place, nothing, token_work, without
from zellige_ray.training.profile_kernels import KernelProbe, time_copies
from zellige_ray.training.profile_pace import MIN_REPEATS, Pace, Progress, usual
from zellige_ray.training.profile_scope import REFERENCE_TEXT, REFERENCE_TOKENS, Probe, Scope
from zellige_ray.training.profile_together import together
from zellige_ray.training.profile_trials import Sharing, Trial, fit_trials
from zellige_ray.training.profile_wire import pairs_of
from zellige_ray.training.runner import Runner
from zellige_ray.training.state import TrainState

PROBES = 4
BLOCK_SHARE, KERNEL_SHARE, TRIAL_SHARE = 0.5, 0.3, 0.2  # of the budget
TOKENS = (0, 16, 64, 256, 512, 1024, 2048, 4096, 8192)  # of one piece
SHARED = (Shape(1, 128), Shape(1, 1024))  # samples that two ranks share
FIRST = Shape(1, REFERENCE_TOKENS, REFERENCE_TEXT)  # tells how long the others take
SPARE = 4  # budget for that many times the smallest set of shapes, before layers are left out
PIECES = ((4, 64), (16, 32))  # pieces, tokens of each
QUERIES, KEYS = (8, 32, 128, 512, 2048), (8, 64, 512, 2048)
LITTLE = 1e-6  # gradient that nothing clips
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
    probe = BlockProbe(runner, spec, now)
    with runner.state.layout.running(comm):
        blocks = _blocks(probe, scope, pace, lambda x: progress(x * BLOCK_SHARE))
        trials = _trials(probe, scope, comm, pace, lambda x: progress(BLOCK_SHARE + x * TRIAL_SHARE))
    half = config.engine.dtype == "bfloat16"  # attention runs in it, weights are wider
    like = torch.empty(0, dtype=torch.bfloat16 if half else runner.loader.dtype, device=device)
    kernel = choose_kernel(config.engine.kernel, device, like.dtype)
    head_dim = config.model.head_dim
    attention = KernelProbe(kernel, config.model.heads, head_dim, like, config.engine.deterministic, now)
    kernels = _kernels(attention, scope, pace, lambda x: progress(1 - KERNEL_SHARE * (1 - x)))
    copied = [time_copies(COPIED, config.model.heads, head_dim, like, now) for _ in range(5)]
    update, parameters = _update(runner, config, now)
    beside = together(runner, comm, scope, now)
    forward = token_work("block forward", blocks, "forward_s")
    backward = token_work("block backward", blocks, "backward_s")
    full = config.model.checkpointing != "none"
    model = spec.preset(config.model, config.engine.dtype_bytes)
    whole, attend_s = in_place(blocks, kernels[True], model)
    progress(1.0)
    curves = StepCurves(
        load=token_work("loading", blocks, "load_s", _reading(runner)),
        outside_forward=token_work("embedders and head, forward", blocks, "outside_forward_s"),
        outside_backward=token_work("embedders and head, backward", blocks, "outside_backward_s"),
        block_forward=forward,
        block_recompute=forward if full else nothing(),
        block_backward=without(backward, forward) if full else backward,
        whole=whole,
        units=kernels[False],
        attend_s=attend_s,
        shared_s=0.0,
        wander=0.0,
        copies=copy_work(copied, usual([t.exchange_s for t in blocks[FIRST]])),
        round_s=usual([t.round_s for t in blocks[Shape(0, 0)]]),
        update=update,
        parameters=parameters,
        width=config.model.heads * config.model.head_dim,
        heads=config.model.heads,
        text_first=spec.joint != "img",
        sharded=runner.state.sharded,
        **beside,
    )
    if comm is None:
        return curves
    found = fit_trials(curves, trials, model, comm.rank, scope.nodes)
    others = Sharing(*(pace.slowest(x) for x in (found.units, found.shared_s, found.wander)))
    return (found if trials else others).on(curves)  # a rank without a partner takes what others found


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


def _trials(probe: BlockProbe, scope: Scope, comm: Comm | None, pace: Pace, progress: Progress) -> list[Trial]:
    """What shared samples take; none on a rank without a partner, which only keeps the others company."""
    partners = (pairs_of(scope.nodes, False) or pairs_of(scope.nodes, True)) if comm is not None else {}
    if comm is None or not partners:
        return []
    pairs = [(a, b) for a, b in partners.items() if a < b]
    shapes = [s for s in SHARED if s.tokens <= max(scope.max_tokens, SHARED[0].tokens)]
    runs = pace.repeat(
        [partial(probe.time_shared, shape, pairs, comm) for shape in shapes], scope.budget_s * TRIAL_SHARE, progress
    )
    if comm.rank not in partners:
        return []
    return [probe.trial(shape, pairs, times[1:]) for shape, times in zip(shapes, runs, strict=True)]


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
    """Seconds of applying a step over parameters, timed on others like the first ones; and how many this rank applies.

    Those of a sharded state hold no values now, they are gathered while a step runs only.
    """
    trained = [p for p in runner.state.module.parameters() if p.requires_grad]
    points: dict[float, float] = {}
    other = torch.empty(SCRATCH_VALUES, device=runner.loader.device)
    for limit in (1, SCRATCH_VALUES):
        taken = list(_first(trained, limit))
        scratch = TrainState(nn.ParameterList([nn.Parameter(torch.zeros_like(p)) for p in taken]), config.optimizer, 10)
        seconds = []
        for step in range(1, 6):
            scratch.layout.zero()
            for unit in scratch.layout.units:
                unit.own_grad.fill_(LITTLE)  # of zeros the moments are zero, whose roots take twice as long
            scratch.layout.reduce(None)  # finds the norm, as it does in a step
            other.fill_(step)  # a step leaves nothing of the state in the caches
            began = now()
            scratch.apply(step)
            seconds.append(now() - began)
        points[float(sum(p.numel() for p in taken))] = usual(seconds[1:])
    return fit_curve("optimizer", points), sum(p.numel() for _, p in runner.state.pieces)


def _first(parameters: Sequence[nn.Parameter], limit: int) -> Iterator[nn.Parameter]:
    count = 0
    for p in parameters:
        if count and count + p.numel() > limit:
            return
        count += p.numel()
        yield p


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
