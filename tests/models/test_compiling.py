"""Compiled token-wise parts: the same numbers, and no new graph per packing."""

from __future__ import annotations

import pytest
import torch

from zellige_ray.attention import AttentionEngine, compile_layout
from zellige_ray.attention.tilings import whole_round
from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models import get_adapter, get_spec
from zellige_ray.models.compiling import compile_tokenwise

HEADS = 2
pytestmark = pytest.mark.filterwarnings("ignore")  # dynamo and inductor warn of themselves
SHAPES = ([(1, 2, 3), (1, 4, 5)], [(2, 3, 5)], [(1, 1, 1), (1, 1, 3), (3, 2, 3)], [(1, 6, 6)] * 3, [(1, 1, 17)])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_six_packings_share_a_few_graphs_and_change_nothing(backend, lab):
    torch._dynamo.reset()
    config = ModelConfig(name="wan", layers=2, heads=HEADS, head_dim=12, mlp_ratio=2.0)
    adapter = get_adapter("wan")
    plain, module = (adapter.build(config, lab.TEXT_DIM, 0, torch.float32, "cpu") for _ in range(2))
    bound = adapter.bind(module)
    graphs = compile_tokenwise(bound, backend)
    for shapes in SHAPES:
        batch = lab.make_batch(get_spec("wan"), shapes, [3] * len(shapes), torch.float32, 0)
        lengths = [b.grad.shape[0] for b in batch]
        layout = compile_layout(whole_round(lengths, [0] * len(lengths), HEADS), 0, HEADS)
        packed, _ = lab.pack(adapter, batch, layout, torch.float32)
        outs = []
        for one in (bound, adapter.bind(plain)):
            out = one(packed, AttentionEngine(layout, None))
            out.square().sum().backward()
            outs.append(out.detach())
        assert torch.allclose(*outs, atol=1e-5)
    assert 1 <= graphs.count <= 3
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-4 * float(b.grad.abs().max()) + 1e-7)
    with pytest.raises(ModelError, match="already"):
        compile_tokenwise(bound)


def test_a_model_without_such_parts_says_so(lab):
    config = ModelConfig(name="sana", layers=1, heads=HEADS, head_dim=16, mlp_ratio=2.5)
    module = get_adapter("sana").build(config, lab.TEXT_DIM, 0, torch.float32, "cpu")
    with pytest.raises(ModelError, match="no token-wise part"):
        compile_tokenwise(get_adapter("sana").bind(module))
