"""The document on own models is code that runs: its model, cut over ranks, equals one sequence at a time."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from zellige_ray.attention.tilings import random_round
from zellige_ray.config import ModelConfig
from zellige_ray.models.specs import get_spec, specs

DOCUMENT = Path(__file__).parents[2] / "docs" / "own-model.md"


@pytest.fixture
def mine(monkeypatch):
    monkeypatch.setattr("zellige_ray.models.specs.specs", specs)  # restored below: the document adds a spec
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, str(DOCUMENT), "exec"), names)
    lines = [line for line in code.split("class MyAdapter")[1].splitlines() if line.strip()]
    assert len(lines) <= 40
    yield SimpleNamespace(**{k: v for k, v in names.items() if not k.startswith("__")})
    del specs["mine"]


@pytest.mark.dist
@pytest.mark.parametrize("mode", ["none", "full", "attention"])
def test_the_documented_adapter_is_exact(mine, mode, lab):
    adapter, spec = mine.adapter, get_spec("mine")
    batch = lab.make_batch(spec, [(1, 1, 1), (2, 3, 5), (1, 4, 7)], [1, 1, 1], torch.float64, 0)

    def fresh():
        config = ModelConfig(name="mine", layers=2, heads=4, head_dim=12)
        module = adapter.build(config, lab.TEXT_DIM, 0, torch.float64, "cpu")
        with torch.no_grad():
            module.patch_out.weight.copy_(
                torch.linspace(-1, 1, module.patch_out.weight.numel()).view_as(module.patch_out.weight)
            )
        return module

    def bound():
        module = fresh()
        adapter.bind(module, mode)
        return module

    module = fresh()
    for b in batch:
        n = b.grad.shape[0]
        patches, places = adapter.tokens(b.latents, 0, n), adapter.positions(b.shape, 0, n)
        out = module(patches.flatten(1)[None], places[None].double(), b.time[None])[0].view_as(patches)
        (out * b.grad).sum().backward()
    want = {name: p.grad for name, p in module.named_parameters()}
    round_ = random_round(np.random.default_rng(1), [b.grad.shape[0] for b in batch], 3, 4, use=("uneven", "shared"))
    _, grads, _, _ = lab.run_packed(adapter, bound, batch, round_, 3, 4, torch.float64)
    error, name = lab.worst(grads, want)
    assert error <= 1e-10, name
