"""A small state on ranks as threads: the reference DiT, plans that leave a rank idle, any layout."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from zellige_ray.attention.comm import Comm
from zellige_ray.config import EngineConfig, LoraConfig, LossConfig, ModelConfig, OptimizerConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.data.index import SampleMeta
from zellige_ray.models.registry import get_adapter
from zellige_ray.models.specs import get_spec
from zellige_ray.placement import Cluster, CostModel, Plan, Sequence, load_hardware, make_plan
from zellige_ray.training.batch import Loader
from zellige_ray.training.runner import Runner
from zellige_ray.training.state import TrainState

SPEC = get_spec("dit")


@dataclass(frozen=True)
class Case:
    """What is trained. trained: which parameters are, by name. lora: adapters on these layers instead.

    engine: the type of products; `dtype` is that of weights.
    """

    dtype: torch.dtype = torch.float64
    engine: Any = "float64"
    checkpointing: Any = "none"
    trained: Callable[[str], bool] = lambda name: True
    lora: tuple[str, ...] = ()
    layers: int = 2
    clip: float = 0.02
    optimizer: dict[str, Any] = field(default_factory=dict)


def make_runner(cache: LatentCache, case: Case, layout: str) -> Runner:
    """A runner that holds everything, with weights none of which is zero."""
    lora = LoraConfig(rank=2, targets=case.lora) if case.lora else None
    sizes: dict[str, Any] = {"layers": case.layers, "heads": 3, "head_dim": 12}
    model = ModelConfig(name="dit", checkpointing=case.checkpointing, lora=lora, **sizes)
    adapter, device = get_adapter("dit"), torch.device("cpu")
    module = adapter.build(model, cache.text_dim, 0, case.dtype, device)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(case.dtype))
            p.requires_grad_(p.requires_grad and case.trained(name))
    loader = Loader(cache, cache.text_dim, adapter, SPEC, LossConfig(), 0, case.dtype, device)
    bound = adapter.bind(module)
    settings = OptimizerConfig(**{"lr": 3e-3, "warmup_steps": 2, "clip_norm": case.clip, **case.optimizer})
    state = TrainState(module, settings, 100, bound.blocks, layout)
    return Runner(bound, state, loader, EngineConfig(dtype=case.engine), model.heads)


def make(samples: tuple[SampleMeta, ...], world: int, step: int) -> Plan:
    """Plans of several policies by turns; every third batch is a single sample, held whole by one rank."""
    return _make(samples, world, ("zellige", "cp", "dp")[step % 3])


@functools.lru_cache(maxsize=256)
def _make(samples: tuple[SampleMeta, ...], world: int, policy: str) -> Plan:
    rows = [Sequence(s.id, SPEC.tokens(s.latent_shape), s.text_tokens) for s in samples]
    speeds = tuple(1.0 + 0.7 * (r % 2) for r in range(world))
    cluster = Cluster((0,) * world, (8 << 30,) * world, speeds)
    model = ModelConfig(name="dit", layers=2, heads=3, head_dim=12)
    return make_plan(rows, cluster, CostModel(load_hardware("cpu"), SPEC.preset(model, 8)), policy)


def batch(cache: LatentCache, step: int) -> tuple[SampleMeta, ...]:
    """The samples of a step."""
    samples = cache.index().samples
    start = 3 * step % (len(samples) - 4)
    return samples[start : start + (1 if step % 3 == 2 else 4)]


def one_step(runner: Runner, cache: LatentCache, comm: Comm | None) -> tuple[float, float]:
    """Trains on the next batch; loss and gradient norm."""
    step, world = runner.state.step, comm.size if comm is not None else 1
    samples = batch(cache, step)
    outcome = runner.gradients(make(samples, world, step), samples, 0, comm)
    runner.state.apply(step + 1)
    return outcome.loss, outcome.norm


def flat(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor of a whole state by a name; counters as tensors."""
    out = {f"model.{n}": t for n, t in state["model"].items()} | {f"ema.{n}": t for n, t in state["ema"].items()}
    for name, moments in state["optimizer"].items():
        out |= {f"optimizer.{name}.{k}": t for k, t in moments.items()}
    return {n: t.detach().double().clone() for n, t in out.items()}


def worst(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest difference, relative to the largest value of the tensor's kind."""
    assert a.keys() == b.keys()
    out = 0.0
    for kind in ("model", "ema", "optimizer"):
        names = [n for n in a if n.startswith(kind) and not n.endswith(".step")]
        for suffix in ("exp_avg", "exp_avg_sq") if kind == "optimizer" else ("",):
            mine = [n for n in names if n.endswith("." + suffix) or not suffix]
            scale = max((float(b[n].abs().max()) for n in mine), default=1.0)
            out = max([out, *(float((a[n] - b[n]).abs().max()) / scale for n in mine)])
    assert all(torch.equal(a[n], b[n]) for n in a if n.endswith(".step"))
    return out


def nodes_of(world: int) -> tuple[int, ...]:
    """Two nodes, the second one smaller where the world is odd."""
    return tuple(r * 2 // world if world > 1 else 0 for r in range(world))
