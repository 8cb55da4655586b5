"""Adapters and frozen parts: exact on cut sequences, the same on every rank, and names that match nothing are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.models.test_exactness import alone
from tests.models.test_families import plain
from zellige_ray.attention.tilings import random_round
from zellige_ray.config import LoraConfig, ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models import get_adapter, get_spec

HEADS, HEAD_DIM = 3, 16
SHAPES, TEXT = [(1, 1, 1), (1, 1, 17), (1, 6, 5), (1, 4, 7)], [5, 1, 11, 4]
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5}
TARGETS = {  # some layers of attention, of feed-forward, and of the modulation, whose input is one row per sequence
    "wan": ("to_q", "to_out.0", "blocks.1.ffn.net.2", "condition_embedder.time_proj"),
    "flux": ("to_k", "ff.net.2", "norm1.linear", "single_transformer_blocks.*.proj_out"),
    "dit": ("qkv", "mlp_out", "blocks.1.modulation"),
}


@pytest.fixture
def _double_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    """diffusers' hard-coded `.float()` would hide everything below 1e-7."""
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else x.to(torch.float32))


def fresh(name, dtype, checkpointing="none", **settings):
    """A module with no zero weights, adapters included, so that every gradient means something."""
    sizes = {"layers": 2, "heads": HEADS, "head_dim": HEAD_DIM}
    config = ModelConfig(name=name, checkpointing=checkpointing, **sizes, **settings)
    module = get_adapter(name).build(config, 24, 0, torch.float64, "cpu")
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=g, dtype=torch.float64) * (0.1 if p.ndim > 1 else 0.02))
    return module.to(dtype)


def check(name, lab, dtype, world, checkpointing, **settings):
    spec, adapter = get_spec(name), get_adapter(name)
    batch = lab.make_batch(spec, SHAPES, TEXT, dtype, 3)
    lengths = [b.grad.shape[0] + (b.text.shape[0] if spec.joint else 0) for b in batch]
    round_ = random_round(np.random.default_rng(world), lengths, world, HEADS, use=("uneven", "shared"))
    module = fresh(name, dtype, **settings)
    if name == "flux":
        loss = sum((plain(name, module, b) * b.grad).sum() for b in batch)
        loss.backward()
        loss = loss.detach()
    else:
        loss, _, _ = alone(name, module, batch)
    want = {n: p.grad for n, p in module.named_parameters() if p.requires_grad}
    assert 0 < len(want) < len(list(module.parameters()))
    got_loss, grads, _, exchanges = lab.run_packed(
        adapter, lambda: fresh(name, dtype, checkpointing, **settings), batch, round_, world, HEADS, dtype
    )
    assert max(exchanges) > 0, "nothing was cut"
    assert float(abs(got_loss - loss)) <= LIMITS[dtype] * max(1.0, float(abs(loss)))
    error, worst = lab.worst({n: grads[n] for n in want}, want)
    assert error <= LIMITS[dtype], f"{worst}: {error}"
    assert all(not grads[n].any() for n, p in module.named_parameters() if not p.requires_grad)


@pytest.mark.dist
@pytest.mark.usefixtures("_double_casts")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("checkpointing", ["none", "full", "attention"])
@pytest.mark.parametrize(("name", "world"), [("wan", 3), ("flux", 2), ("dit", 3)])
def test_gradients_of_adapters_equal_one_process_on_cut_sequences(name, world, checkpointing, dtype, lab) -> None:
    check(name, lab, dtype, world, checkpointing, lora=LoraConfig(rank=4, alpha=8, targets=TARGETS[name]))


@pytest.mark.dist
@pytest.mark.usefixtures("_double_casts")
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(
    ("name", "globs"), [("wan", ("blocks.1.attn1.*",)), ("flux", ("*.norm1.*", "transformer_blocks.0.attn.to_v.*"))]
)
def test_gradients_of_named_parameters_equal_one_process_and_the_rest_is_frozen(name, globs, checkpointing, lab):
    check(name, lab, torch.float64, 3, checkpointing, train=globs)


def test_adapters_change_nothing_at_first_and_are_the_same_for_the_same_seed(lab) -> None:
    (b,) = lab.make_batch(get_spec("wan"), SHAPES[2:3], TEXT[2:3], torch.float32, 0)
    sizes = {"name": "wan", "layers": 2, "heads": HEADS, "head_dim": HEAD_DIM}
    build, lora = get_adapter("wan").build, LoraConfig(rank=2)
    whole = build(ModelConfig(**sizes), lab.TEXT_DIM, 7, torch.float32, "cpu")
    torch.manual_seed(1)
    one = build(ModelConfig(**sizes, lora=lora), lab.TEXT_DIM, 7, torch.float32, "cpu")
    torch.manual_seed(2)
    two = build(ModelConfig(**sizes, lora=lora), lab.TEXT_DIM, 7, torch.float32, "cpu")
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))
    drawn = [p for n, p in one.named_parameters() if ".lora_A." in n]
    assert all(float(p.detach().std()) > 0 for p in drawn) and not torch.equal(drawn[0], drawn[1])
    with torch.no_grad():
        answers = [m(b.latents[None], b.time[None] * 1000, b.text[None], return_dict=False)[0] for m in (whole, one)]
    assert torch.equal(*answers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": LoraConfig(targets=("to_qq",))}, r"model.lora.targets: 'to_qq' matches nothing; near it are .*to_q"),
        ({"lora": LoraConfig(targets=("to_q", "norm1"))}, r"'norm1' matches nothing"),
        ({"train": ("blocks.7.*",)}, r"model.train: 'blocks.7.\*' matches nothing; near it are "),
    ],
)
def test_names_that_match_nothing_are_named_with_near_ones(settings, message) -> None:
    with pytest.raises(ModelError, match=message):
        fresh("wan", torch.float32, **settings)
