"""The runner on ranks as threads: one truth for the loss, ranks with other plans refused, previews put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.actors.tiny_data import write_cache
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.config import EngineConfig, LossConfig, ModelConfig, OptimizerConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.data.index import SampleMeta
from zellige_ray.errors import EngineError
from zellige_ray.models.registry import get_adapter
from zellige_ray.models.specs import get_spec
from zellige_ray.placement import Cluster, CostModel, Plan, Sequence, load_hardware, make_plan
from zellige_ray.training.batch import Loader
from zellige_ray.training.runner import Runner
from zellige_ray.training.state import TrainState

MODEL = ModelConfig(name="dit", layers=2, heads=3, head_dim=12)
JOINT = ModelConfig(name="hunyuan", layers=2, heads=3, head_dim=16)  # captions attend together with the visual tokens
SPEC = get_spec("dit")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


def make_runner(
    cache: LatentCache,
    dtype: torch.dtype = torch.float64,
    loss: LossConfig | None = None,
    model: ModelConfig = MODEL,
) -> Runner:
    adapter, device = get_adapter(model.name), torch.device("cpu")
    module = adapter.build(model, cache.text_dim, 0, dtype, device)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():  # no weight is zero, so that every gradient means something
        for p in module.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype))
    loader = Loader(cache, cache.text_dim, adapter, get_spec(model.name), loss or LossConfig(), 0, dtype, device)
    return Runner(adapter.bind(module), TrainState(module, OptimizerConfig(), 1), loader, EngineConfig(), model.heads)


def make(samples: tuple[SampleMeta, ...], world: int, policy: str, model: ModelConfig = MODEL) -> Plan:
    rows = [Sequence(s.id, SPEC.tokens(s.latent_shape), s.text_tokens) for s in samples]
    cluster = Cluster((0,) * world, (8 << 30,) * world, (1.0,) * world)
    return make_plan(rows, cluster, CostModel(load_hardware("cpu"), get_spec(model.name).preset(model, 8)), policy)


def gradients(runner: Runner) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in runner.bound.module.parameters()])  # type: ignore[union-attr]


@pytest.mark.dist
@pytest.mark.parametrize("weighting", ["sample", "token"])
@pytest.mark.parametrize("policy", ["zellige", "dp", "cp"])
def test_loss_and_gradients_are_those_of_one_rank_under_every_policy(
    cache: LatentCache, policy: str, weighting: Any
) -> None:
    samples = cache.index().samples

    def body(rank: int, comm: Comm) -> tuple[float, torch.Tensor]:
        runner = make_runner(cache, loss=LossConfig(weighting=weighting))
        outcome = runner.gradients(make(samples, comm.size, policy), samples, 2, comm if comm.size > 1 else None)
        assert outcome.finite
        return outcome.loss, gradients(runner)

    ((loss, grad),) = run_ranks(1, body)
    for other_loss, other_grad in run_ranks(3, body):
        assert other_loss == pytest.approx(loss, rel=1e-12)
        assert float((other_grad - grad).abs().max()) <= 1e-10 * float(grad.abs().max())


@pytest.mark.dist
@pytest.mark.parametrize("policy", ["zellige", "dp", "cp"])
def test_a_joint_model_trains_on_its_captions_tokens_too_and_previews_only_visual_ones(
    cache: LatentCache, policy: str
) -> None:
    samples = cache.index().samples

    def body(rank: int, comm: Comm) -> tuple[float, torch.Tensor, list[Any]]:
        runner = make_runner(cache, torch.float32, model=JOINT)
        plan, peers = make(samples, comm.size, policy, JOINT), comm if comm.size > 1 else None
        loss = runner.gradients(plan, samples, 0, peers).loss
        return loss, gradients(runner), runner.denoise(plan, samples, peers, steps=2)

    ((loss, grad, parts),) = run_ranks(1, body)
    assert sum(len(p.tokens) for p in parts) == sum(SPEC.tokens(s.latent_shape) for s in samples)
    seen = 0
    for other_loss, other_grad, other_parts in run_ranks(3, body):
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert float((other_grad - grad).abs().max()) <= 1e-5 * float(grad.abs().max())
        seen += sum(len(p.tokens) for p in other_parts)
    assert seen == sum(len(p.tokens) for p in parts)


@pytest.mark.dist
def test_ranks_that_hold_different_plans_are_refused_on_all_of_them_before_any_work(cache: LatentCache) -> None:
    samples = cache.index().samples

    def body(rank: int, comm: Comm) -> str:
        runner = make_runner(cache)
        with pytest.raises(EngineError, match=r"ranks \[1\] are about to run another plan"):
            runner.gradients(make(samples, 2, "dp" if rank else "cp"), samples, 0, comm)
        return "refused"

    assert run_ranks(2, body) == ["refused"] * 2


def test_the_noise_of_another_pass_or_seed_gives_another_loss_and_the_same_one_the_same_bits(
    cache: LatentCache,
) -> None:
    samples = cache.index().samples
    plan = make(samples, 1, "dp")
    losses = [make_runner(cache).gradients(plan, samples, pass_, None).loss for pass_ in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_the_held_out_loss_is_the_same_at_every_call_and_leaves_gradients_alone(cache: LatentCache) -> None:
    samples = cache.index().samples
    runner, plan = make_runner(cache), make(samples, 1, "dp")
    assert runner.held_out(plan, samples, None) == runner.held_out(plan, samples, None) > 0
    assert not gradients(runner).any()


@pytest.mark.dist
def test_previews_of_all_ranks_put_together_equal_those_of_one_rank(cache: LatentCache) -> None:
    samples = cache.index().samples[:5]

    def body(rank: int, comm: Comm) -> list[Any]:
        runner = make_runner(cache)
        return runner.denoise(make(samples, comm.size, "cp"), samples, comm if comm.size > 1 else None, steps=3)

    def whole(parts: list[Any]) -> dict[str, np.ndarray]:
        ids = {p.sample for p in parts}
        joined = {i: sorted((p for p in parts if p.sample == i), key=lambda p: p.start) for i in ids}
        return {i: np.concatenate([p.tokens for p in found]) for i, found in joined.items()}

    one = whole(run_ranks(1, body)[0])
    three = whole([part for parts in run_ranks(3, body) for part in parts])
    assert one.keys() == three.keys() == {s.id for s in samples}
    for name, tokens in one.items():
        assert np.abs(three[name] - tokens).max() <= 1e-5 * np.abs(tokens).max()


def test_a_rank_reads_only_the_latent_frames_of_its_tokens(
    cache: LatentCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read: list[tuple[str, int, int]] = []
    plain = LatentCache.read_frames

    def spy(self: LatentCache, meta: SampleMeta, start: int, stop: int) -> torch.Tensor:
        read.append((meta.id, start, stop))
        return plain(self, meta, start, stop)

    monkeypatch.setattr(LatentCache, "read_frames", spy)
    clip = next(s for s in cache.index().samples if s.latent_shape[1] == 5)
    per_frame = SPEC.tokens(clip.latent_shape) // 5
    from zellige_ray.attention.layout import compile_layout
    from zellige_ray.placement import Round

    n, cut = SPEC.tokens(clip.latent_shape), 2 * per_frame + 1
    round_ = Round(
        ids=(clip.id,),
        tokens_S=np.array([n]),
        text_tokens_S=np.array([clip.text_tokens]),
        shards_K4=np.array([[0, 0, 0, cut], [0, 1, cut, n]]),
        tiles_M6=np.array([[0, 0, 0, 3, 0, n]]),
    )
    loader = make_runner(cache).loader
    weights = loader.weights([clip])
    halves = [loader.share(compile_layout(round_, rank, 3), [clip], 0, weights) for rank in (0, 1)]
    assert read == [(clip.id, 0, 3), (clip.id, 2, 5)]
    whole = torch.cat([h.packed.tokens_TCphw for h in halves])
    assert len(whole) == n
    assert sum(float(h.weight_T.sum()) for h in halves) == pytest.approx(1.0)
