"""bfloat16: products in bfloat16, weights and optimizer in float32, timesteps exact, a loss that falls as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.actors.tiny_data import write_cache
from tests.models.conftest import make_batch, worst
from tests.models.test_exactness import alone
from tests.models.test_exactness import fresh as small
from tests.training.test_runner import make
from zellige_ray.attention.kernels.sdpa import SdpaKernel
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.config import EngineConfig, LossConfig, ModelConfig, OptimizerConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.models import get_adapter, get_spec
from zellige_ray.training.batch import Loader
from zellige_ray.training.runner import Runner
from zellige_ray.training.state import TrainState

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


def make_runner(cache: LatentCache, engine: str, name: str = "wan", checkpointing: Any = "none") -> Runner:
    model = ModelConfig(name=name, layers=2, heads=3, head_dim=16, checkpointing=checkpointing)
    module = get_adapter(name).build(model, cache.text_dim, 0, torch.float32, CPU)
    loader = Loader(cache, cache.text_dim, get_adapter(name), get_spec(name), LossConfig(), 0, torch.float32, CPU)
    bound = get_adapter(name).bind(module)
    state = TrainState(module, OptimizerConfig(lr=0.003, warmup_steps=0), 12, bound.blocks)
    return Runner(bound, state, loader, EngineConfig(dtype=engine), model.heads)  # type: ignore[arg-type]


def train(runner: Runner, cache: LatentCache, steps: int) -> list[float]:
    samples = cache.index().samples[:6]
    plan, losses = make(samples, 1, "dp"), []
    for step in range(1, steps + 1):
        losses.append(runner.gradients(plan, samples, 0, None).loss)
        runner.state.apply(step)
    return losses


def test_the_loss_falls_as_in_float32_with_weights_and_moments_in_float32(cache: LatentCache) -> None:
    plain, mixed = make_runner(cache, "float32"), make_runner(cache, "bfloat16")
    reference, losses = train(plain, cache, 12), train(mixed, cache, 12)
    assert reference[-1] < 0.9 * reference[0]
    assert losses == pytest.approx(reference, rel=0.02)
    assert losses != reference, "nothing was computed in bfloat16"
    kinds = {p.dtype for p in mixed.state.module.parameters()}
    moments = {v.dtype for _, p in mixed.state.pieces for v in mixed.state.optimizer.state[p].values()}
    assert kinds == moments == {a.dtype for a in mixed.state.ema.values()} == {torch.float32}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Types of the operands of every self-attention."""
    kinds: list[torch.dtype] = []
    plain = SdpaKernel.forward

    def spy(self: SdpaKernel, q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        kinds.append(q.dtype)
        return plain(self, q, *args, **kwargs)

    monkeypatch.setattr(SdpaKernel, "forward", spy)
    return kinds


EMBEDDERS = {
    "wan": "condition_embedder.timesteps_proj",
    "flux": "time_text_embed.time_proj",
    "flux2": "time_guidance_embed.time_proj",
    "qwen": "time_text_embed.time_proj",
}


@pytest.mark.parametrize("name", EMBEDDERS)
def test_attention_is_in_bfloat16_and_timesteps_reach_the_model_unrounded(
    name: str, lab: Any, seen: list[torch.dtype]
) -> None:
    from zellige_ray.attention import AttentionEngine, compile_layout
    from zellige_ray.attention.tilings import whole_round

    spec, adapter = get_spec(name), get_adapter(name)
    (b,) = lab.make_batch(spec, [(1, 4, 6)], [5], torch.float32, 0)
    b.time = torch.tensor(0.7772)
    model = ModelConfig(name=name, layers=1, heads=3, head_dim=16)
    bound = adapter.bind(adapter.build(model, lab.TEXT_DIM, 0, torch.float32, CPU))
    given: list[torch.Tensor] = []
    bound.module.get_submodule(EMBEDDERS[name]).register_forward_pre_hook(lambda _m, args: given.append(args[0]))
    layout = compile_layout(whole_round([24 + (5 if spec.joint else 0)], [0], 3), 0, 3)
    packed, _ = lab.pack(adapter, [b], layout, torch.float32)
    state, engine = TrainState(bound.module, OptimizerConfig(), 1), EngineConfig(dtype="bfloat16")
    loader = Loader(None, lab.TEXT_DIM, adapter, spec, LossConfig(), 0, torch.float32, CPU)  # type: ignore[arg-type]
    out = Runner(bound, state, loader, engine, 3).predict(packed, AttentionEngine(layout, None))
    assert out.dtype == torch.float32 and set(seen) == {torch.bfloat16}
    scale = 1.0 if name == "qwen" else 1000.0
    assert given[0].dtype == torch.float32
    assert float((given[0][:1] - torch.tensor([0.7772]) * scale).abs().max()) == 0.0


@pytest.fixture
def lab() -> Any:
    from types import SimpleNamespace

    from tests.models.conftest import TEXT_DIM, pack

    return SimpleNamespace(make_batch=make_batch, pack=pack, TEXT_DIM=TEXT_DIM)


def test_packed_gradients_are_as_near_to_the_truth_as_those_of_plain_autocast(lab: Any) -> None:
    from zellige_ray.attention import AttentionEngine, compile_layout
    from zellige_ray.attention.tilings import whole_round

    spec, adapter, shapes, text = get_spec("wan"), get_adapter("wan"), [(1, 4, 7), (2, 3, 5), (1, 1, 17)], [5, 3, 11]
    exact = make_batch(spec, shapes, text, torch.float64, 0)
    _, truth, _ = alone("wan", small("wan", lab, torch.float64), exact)
    batch = make_batch(spec, shapes, text, torch.float32, 0)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        _, plain, _ = alone("wan", small("wan", lab, torch.float32), batch)
    module = small("wan", lab, torch.float32)
    bound = adapter.bind(module)
    layout = compile_layout(whole_round([b.grad.shape[0] for b in batch], [0] * 3, 3), 0, 3)
    packed, _ = lab.pack(adapter, batch, layout, torch.float32)
    state = TrainState(module, OptimizerConfig(), 1, bound.blocks)
    loader = Loader(None, lab.TEXT_DIM, adapter, spec, LossConfig(), 0, torch.float32, CPU)  # type: ignore[arg-type]
    runner = Runner(bound, state, loader, EngineConfig(dtype="bfloat16"), 3)
    prediction = runner.predict(packed, AttentionEngine(layout, None))
    (prediction * torch.cat([batch[p.sequence].grad for p in layout.pieces])).sum().backward()
    error = worst({n: p.grad for n, p in module.named_parameters()}, truth)[0]
    assert error <= 2 * worst(plain, truth)[0]


@pytest.mark.dist
@pytest.mark.parametrize("checkpointing", ["none", "full", "attention"])
def test_cut_sequences_give_nearly_the_gradients_of_one_rank(cache: LatentCache, checkpointing: str) -> None:
    samples = cache.index().samples

    def body(rank: int, comm: Any) -> torch.Tensor:
        runner = make_runner(cache, "bfloat16", checkpointing=checkpointing)
        runner.gradients(make(samples, comm.size, "cp"), samples, 0, comm if comm.size > 1 else None)
        return torch.cat([p.grad.flatten() for p in runner.bound.module.parameters()])  # type: ignore[union-attr]

    (one,) = run_ranks(1, body)
    for other in run_ranks(2, body):
        assert float((other - one).norm() / one.norm()) <= 0.02
