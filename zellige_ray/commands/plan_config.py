"""Answers before launch: what the data set of a run config needs, on hardware that need not be there.

Longest sequence, memory per rank at each degree, step time, GPUs needed, idle share, and every sample that would be
left out, with its reason. Reads headers only: nothing is encoded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zellige_ray.config import RunConfig, load_config
from zellige_ray.configs import choose
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.survey import survey
from zellige_ray.errors import ConfigError, PlanError
from zellige_ray.placement import Cluster, CostModel, HardwareProfile, make_plan
from zellige_ray.placement import Sequence as Lengths
from zellige_ray.words import counted

GIB = 1 << 30
MAX_RANKS = 4096
SHOWN = 10
LAYOUTS = {
    "replicated": "whole on every rank",
    "fsdp": "a part on each rank",
    "hsdp": "a part on each rank of a node",
}


@dataclass(frozen=True, slots=True)
class Degree:
    """Memory of a rank when the longest sequence is shared by `degree` ranks. Units: bytes."""

    degree: int
    bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Answers:
    """Everything that is asked before a launch. Units: seconds, bytes; idle is a share of all ranks' time.

    ranks_needed: least number on which the longest sequence fits beside the state; None when no number is enough.
    planned: batches of the first pass that were planned. never_drawn: samples that a pass would miss, always empty.
    """

    config: str
    hardware: str
    ranks: int
    samples: int
    images: int
    videos: int
    held_out: int
    tokens_per_pass: int
    steps_per_pass: int
    longest: str
    longest_tokens: int
    longest_shape: tuple[int, int, int, int]
    layout: str
    state_bytes: int
    memory_bytes: int
    degrees: tuple[Degree, ...]
    ranks_needed: int | None
    planned: int
    step_s: float | None
    slowest_step_s: float | None
    gap: float | None
    idle: float | None
    rounds: int | None
    run_s: float | None
    refused: tuple[tuple[str, str], ...]
    never_drawn: tuple[str, ...]
    fault: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"dropped": len(self.never_drawn)}


def run_arguments(args: argparse.Namespace) -> int:
    """The command, from what was typed. Raises ConfigError for options that a config does not go with."""
    foreign = [f"--{name}" for name in ("batch", "model", "out", "picture", "trace") if getattr(args, name) is not None]
    if foreign:
        raise ConfigError(
            f"{', '.join(foreign)} can't be given with a run config: name a --batch instead of {args.words}"
        )
    batches = 8 if args.batches is None else args.batches
    return run(args.words, args.hardware, args.policy, batches, args.json)


def run(words: Sequence[str], hardware: str | None, policy: str | None, batches: int, as_json: bool) -> int:
    """The command: words are `CONFIG [key=value ...]`. Exit code 2 when the longest sequence fits nowhere."""
    if batches < 1:
        raise ConfigError(f"--batches is {batches}, it must be at least 1")
    path, overrides = choose(words)
    found = answer(load_config(path, overrides), str(path), hardware, policy, batches)
    text = json.dumps(found.to_json()) if as_json else "\n".join(lines(found))
    sys.stdout.write(text + "\n")
    return PlanError.exit_code if found.fault else 0


def answer(config: RunConfig, name: str, hardware: str | None, policy: str | None, batches: int) -> Answers:
    """Surveys the data set and plans the first batches of its first pass; raises ConfigError, DataError, ModelError."""
    from zellige_ray.data.sampler import Sampler, SamplerState
    from zellige_ray.models.architecture import resolve_run
    from zellige_ray.models.specs import get_spec

    config = resolve_run(config)
    spec, profile = get_spec(config.model.name), _hardware(config, hardware)
    seen = survey(config.data, spec)
    train, held = seen.index.split(config.data.held_out, config.seed)

    def tokens_of(sample: SampleMeta) -> int:
        return spec.tokens(sample.latent_shape)

    longest = max(train.samples, key=lambda s: (tokens_of(s), s.id))
    sampler, state = Sampler(train, config.batch, config.seed, tokens_of), SamplerState()
    drawn, batched = list[SampleMeta](), []
    while state.pass_ == 0:
        samples, state = sampler.batch(state)
        drawn += samples
        batched.append([Lengths(s.id, tokens_of(s), s.text_tokens, s.weight) for s in samples])
    cost = CostModel(profile, spec.preset(config.model, config.engine.dtype_bytes))
    cluster = profile.cluster()
    fits = _ranks_needed(cost, tokens_of(longest), profile.memory_bytes)
    planned = _plan(batched[:batches], cluster, cost, policy or config.placement.policy)
    return Answers(
        config=name,
        hardware=profile.name,
        ranks=cluster.world_size,
        samples=len(seen.index),
        images=seen.index.count("image"),
        videos=seen.index.count("video"),
        held_out=len(held),
        tokens_per_pass=sum(map(tokens_of, drawn)),
        steps_per_pass=len(batched),
        longest=longest.id,
        longest_tokens=tokens_of(longest),
        longest_shape=longest.latent_shape,
        layout=profile.state,
        state_bytes=int(cost.memory.state_bytes(cluster.node_of_rank).max()),
        memory_bytes=profile.memory_bytes,
        degrees=_degrees(cost, tokens_of(longest), profile.memory_bytes, max(cluster.world_size, fits or 1)),
        ranks_needed=fits,
        run_s=planned["step_s"] * config.steps if planned["step_s"] is not None else None,
        refused=seen.refused,
        never_drawn=_missed(train, drawn),
        **planned,
    )


def _missed(train: Index, drawn: Sequence[SampleMeta]) -> tuple[str, ...]:
    """Samples that a pass leaves out; of a mixture none, whose data sets are walked to their ends over many passes."""
    return () if train.ratios else tuple(sorted(set(train.ids) - {s.id for s in drawn}))


def _hardware(config: RunConfig, name: str | None) -> HardwareProfile:
    """What was named; the state lies on it as the run's layout says, whatever a preset assumes."""
    from dataclasses import replace

    from zellige_ray.placement import load_hardware

    chosen = name or config.placement.hardware
    if chosen is None:
        raise ConfigError(
            "which hardware? give --hardware h200-8, or a YAML file such as the hardware.yaml that a run leaves; "
            "placement.hardware is not set, and nothing is measured here"
        )
    return replace(load_hardware(chosen), state=config.state.layout)


def _bytes(cost: CostModel, tokens: int, degree: int) -> float:
    """State, activations of a share, and the exchange's buffers (q, k, v, out; sent and received) when it is shared."""
    share = -(-tokens // degree)
    rows = 8.0 * share * cost.model.heads if degree > 1 else 0.0
    row_bytes = cost.model.hidden / cost.model.heads * cost.model.dtype_bytes
    nodes = [rank // cost.hardware.ranks_per_node for rank in range(degree)]
    return float(cost.memory.state_bytes(nodes)[0]) + share * cost.memory.token_bytes() + rows * row_bytes


def _ranks_needed(cost: CostModel, tokens: int, memory_bytes: int) -> int | None:
    low, high = 1, MAX_RANKS
    if _bytes(cost, tokens, high) > memory_bytes:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _bytes(cost, tokens, middle) <= memory_bytes else (middle + 1, high)
    return low


def _degrees(cost: CostModel, tokens: int, memory_bytes: int, most: int) -> tuple[Degree, ...]:
    degrees = sorted({1, most, *(2**i for i in range(1, most.bit_length()) if 2**i <= most)})
    out = []
    for degree in degrees:
        need = _bytes(cost, tokens, degree)
        out.append(Degree(degree, int(need), need <= memory_bytes))
    return tuple(out)


def _plan(batches: Sequence[list[Lengths]], cluster: Cluster, cost: CostModel, policy: str) -> dict[str, Any]:
    """Figures over some batches; nothing but the fault when one fits nowhere."""
    steps, bounds, idle, rounds = [], [], [], []
    try:
        for batch in batches:
            plan = make_plan(batch, cluster, cost, policy)
            assert plan.predicted is not None
            steps.append(plan.predicted.step_s)
            bounds.append(plan.predicted.lower_bound_s)
            busy = sum(rank.linear_s + rank.attention_s for rank in plan.predicted.ranks)
            idle.append(1 - busy / (plan.predicted.step_s * cluster.world_size))
            rounds.append(len(plan.rounds))
    except PlanError as fault:
        none = dict.fromkeys(("step_s", "slowest_step_s", "gap", "idle", "rounds"))
        return {"planned": 0, **none, "fault": str(fault)}
    return {
        "planned": len(steps),
        "step_s": sum(steps) / len(steps),
        "slowest_step_s": max(steps),
        "gap": sum(steps) / sum(bounds) - 1,
        "idle": sum(i * s for i, s in zip(idle, steps, strict=True)) / sum(steps),
        "rounds": max(rounds),
    }


def lines(a: Answers) -> list[str]:
    """The answers for a person."""
    shape = "x".join(map(str, a.longest_shape[1:]))
    out = [
        f"{a.config}: {counted(a.samples, 'sample')}, {counted(a.images, 'image')}, {counted(a.videos, 'video')}; "
        f"{a.held_out} held out",
        f"a pass is {counted(a.tokens_per_pass, 'visual token')} in {counted(a.steps_per_pass, 'step')}",
        f"longest sequence: {a.longest}, {counted(a.longest_tokens, 'token')} (latents {shape})",
        "",
        f"memory per rank of {a.hardware} ({a.memory_bytes / GIB:.1f} GiB), the longest sequence shared by",
        *(f"  {d.degree:>5} ranks  {d.bytes / GIB:9.2f} GiB  {'fits' if d.fits else 'too much'}" for d in a.degrees),
        f"of which {a.state_bytes / GIB:.2f} GiB are parameters, gradients and optimizer, {LAYOUTS[a.layout]}",
        f"GPUs needed: {a.ranks_needed}"
        if a.ranks_needed is not None
        else f"no number of such GPUs is enough: the state alone needs {a.state_bytes / GIB:.2f} GiB of each",
        "",
    ]
    if a.fault is not None:
        out.append(f"on {counted(a.ranks, 'rank')} the run can't be placed: {a.fault}")
    else:
        ranks, batches = counted(a.ranks, "rank"), counted(a.planned, "planned batch", "planned batches")
        step, slowest, whole = (_span(x) for x in (a.step_s, a.slowest_step_s, a.run_s))
        out += [
            f"on {ranks}, by {batches}: step {step} (slowest {slowest}), {a.gap:.2%} over the lower bound",
            f"waste: {a.idle:.1%} of all ranks' time is not compute; rounds per step: up to {a.rounds}",
            f"the whole run: {whole}",
        ]
    out.append(f"dropped samples: {len(a.never_drawn)} of {a.samples - a.held_out} in a pass")
    out.append(f"can't be used: {len(a.refused)}")
    out += [f"  {name}: {reason}" for name, reason in a.refused[:SHOWN]]
    if len(a.refused) > SHOWN:
        out.append(f"  and {len(a.refused) - SHOWN} more (--json lists all)")
    return out


def _span(seconds: float | None) -> str:
    """A time in the unit that a person would choose."""
    assert seconds is not None
    for limit, unit, name in ((1.0, 1e-3, "ms"), (600.0, 1.0, "s"), (36_000.0, 60.0, "min")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 3600:.3g} h"
