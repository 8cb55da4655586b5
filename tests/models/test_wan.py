"""Wan in particular: two timesteps per sequence, negative controls, and what its adapter refuses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.models.families import built
from zellige_ray.attention import AttentionEngine, compile_layout
from zellige_ray.attention.tilings import random_round, whole_round
from zellige_ray.config import ModelConfig
from zellige_ray.errors import EngineError, ModelError
from zellige_ray.models import get_adapter, get_spec

HEADS = 3


def fresh(lab, dtype=torch.float64, name="wan", **options):
    config = ModelConfig(name=name, layers=2, heads=HEADS, head_dim=16, mlp_ratio=options.pop("mlp_ratio", 2.0))
    return built(config, lab, dtype)


@pytest.fixture
def _double_casts(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else x.to(torch.float32))


def one_rank(lab, shapes, text, dtype=torch.float64):
    adapter = get_adapter("wan")
    batch = lab.make_batch(get_spec("wan"), shapes, text, dtype, 0)
    layout = compile_layout(whole_round([b.grad.shape[0] for b in batch], [0] * len(batch), HEADS), 0, HEADS)
    packed, _ = lab.pack(adapter, batch, layout, dtype)
    return adapter, batch, layout, packed


@pytest.mark.usefixtures("_double_casts")
def test_two_rows_per_sequence_equal_wans_own_per_token_timesteps(lab):
    """TI2V: the first frame is clean (timestep 0), the rest is not."""
    adapter, batch, layout, packed = one_rank(lab, [(3, 2, 3), (2, 3, 5)], [4, 6])
    rows, times = [], []
    for piece in layout.pieces:
        b = batch[piece.sequence]
        _, h, w = get_spec("wan").grid(b.shape)
        rows += [len(times)] * (h * w) + [len(times) + 1] * (piece.length - h * w)
        times += [torch.zeros((), dtype=torch.float64), b.time]
    packed = dataclasses.replace(packed, row_T=torch.tensor(rows), timestep_R=torch.stack(times))
    module, plain = fresh(lab), fresh(lab)
    out = adapter.bind(module)(packed, AttentionEngine(layout, None))
    for piece in layout.pieces:
        b = batch[piece.sequence]
        at = slice(piece.offset, piece.offset + piece.length)
        per_token = torch.stack(times)[packed.row_T[at]][None] * 1000
        want = plain(b.latents[None], per_token, b.text[None], return_dict=False)[0][0]
        want = adapter.tokens(want, 0, piece.length)
        assert torch.allclose(out[at], want, rtol=0, atol=1e-12)
        (want * b.grad).sum().backward()
    (out * torch.cat([batch[p.sequence].grad for p in layout.pieces])).sum().backward()
    grads, wants = ({n: p.grad for n, p in m.named_parameters()} for m in (module, plain))
    assert lab.worst(grads, wants)[0] <= 1e-10


@pytest.mark.usefixtures("_double_casts")
@pytest.mark.parametrize("fault", ["rows", "positions", "captions"])
def test_negative_controls_fail(fault, lab):
    adapter, _, layout, packed = one_rank(lab, [(3, 2, 3), (2, 3, 5)], [4, 6])
    bound = adapter.bind(fresh(lab))
    good = bound(packed, AttentionEngine(layout, None))
    wrong = {
        "rows": {"row_T": packed.row_T.roll(1)},
        "positions": {"positions_T3": packed.positions_T3.roll(1, 0)},
        "captions": {"text_LD": packed.text_LD.roll(1, 0)},
    }[fault]
    bad = bound(dataclasses.replace(packed, **wrong), AttentionEngine(layout, None))
    good, bad = good.detach(), bad.detach()
    assert float((good - bad).abs().max()) > 1e-3 * float(good.abs().max())


def test_another_attention_backend_is_refused(lab):
    adapter, _, layout, packed = one_rank(lab, [(1, 2, 3)], [2], torch.float32)
    module = fresh(lab, torch.float32)
    bound = adapter.bind(module)
    module.blocks[1].attn1.processor = lambda attn, hidden, *_args, **_kwargs: (
        hidden
    )  # as flash or sage would: past the seam
    with pytest.raises(EngineError, match=r"wan.blocks.1.attn1.*native"):
        bound(packed, AttentionEngine(layout, None))


def test_the_module_itself_needs_a_packed_batch_once_it_is_bound(lab):
    module = fresh(lab, torch.float32)
    get_adapter("wan").bind(module)
    with pytest.raises(EngineError, match="call the bound model"):
        module(torch.zeros(1, 16, 1, 2, 2), torch.zeros(1), torch.zeros(1, 2, lab.TEXT_DIM))


def test_positions_beyond_the_rotary_table_are_refused(lab):
    adapter, _, layout, packed = one_rank(lab, [(1, 2, 3)], [2], torch.float32)
    far = dataclasses.replace(packed, positions_T3=packed.positions_T3 + 2000)
    with pytest.raises(ModelError, match="1024"):
        adapter.bind(fresh(lab, torch.float32))(far, AttentionEngine(layout, None))


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ModelError, match="nearest known one is 'wan'"):
        get_spec("wann")
    with pytest.raises(ModelError, match="multiples of 16"):
        get_spec("wan").tokens((16, 1, 3, 4))
    with pytest.raises(ModelError, match="latent channels"):
        get_spec("wan").tokens((4, 1, 4, 4))
    with pytest.raises(ModelError, match="at least 1"):
        get_spec("wan").frame_rule(0)
    assert [get_spec("wan").frame_rule(n) for n in (1, 4, 5, 81, 83)] == [1, 1, 5, 81, 81]
    with pytest.raises(ModelError, match="head_dim"):
        get_adapter("wan").build(
            ModelConfig(name="wan", head_dim=12).model_copy(update={"head_dim": 13}), 8, 0, torch.float32, "cpu"
        )


def test_same_seed_same_weights_on_every_rank_and_in_every_dtype():
    config = ModelConfig(name="wan", layers=1, heads=2, head_dim=12)
    adapter = get_adapter("wan")
    torch.manual_seed(1)
    a = adapter.build(config, 8, 5, torch.float64, "cpu").state_dict()
    torch.manual_seed(2)
    b = adapter.build(config, 8, 5, torch.float32, "cpu").state_dict()
    assert all(torch.equal(v.float(), b[k]) for k, v in a.items())
    other = adapter.build(config, 8, 6, torch.float32, "cpu").state_dict()
    assert any(not torch.equal(v, other[k]) for k, v in b.items())


@pytest.mark.usefixtures("_double_casts")
def test_sd35_dual_attention_is_exact_on_whole_sequences_and_refused_on_cut_ones(lab):
    from diffusers import SD3Transformer2DModel

    spec, adapter = get_spec("sd3"), get_adapter("sd3")
    sizes = {"num_layers": 2, "attention_head_dim": 16, "num_attention_heads": HEADS, "caption_projection_dim": 48}
    torch.manual_seed(0)
    plain = SD3Transformer2DModel(
        sample_size=32, joint_attention_dim=lab.TEXT_DIM, pooled_projection_dim=lab.TEXT_DIM, pos_embed_max_size=32,
        dual_attention_layers=(0,), qk_norm="rms_norm", **sizes,
    )  # fmt: skip
    plain = torch.nn.Module.to(plain, torch.float64)

    def make():
        module = torch.nn.Module.to(SD3Transformer2DModel(**plain.config), torch.float64)
        module.load_state_dict(plain.state_dict())
        return module

    batch = lab.make_batch(spec, [(1, 2, 3), (1, 4, 5)], [3, 4], torch.float64, 0)
    for b in batch:
        out = plain(b.latents[:, 0][None], b.text[None], b.pooled[None], b.time[None] * 1000, return_dict=False)[0]
        (adapter.tokens(out[0][:, None], 0, b.grad.shape[0]) * b.grad).sum().backward()
    lengths = [b.grad.shape[0] + b.text.shape[0] for b in batch]
    _, grads, _, _ = lab.run_packed(adapter, make, batch, whole_round(lengths, [0, 1], HEADS), 2, HEADS, torch.float64)
    want = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in plain.named_parameters()}
    assert lab.worst(grads, want)[0] <= 1e-10
    cut = random_round(np.random.default_rng(1), lengths, 2, HEADS, use=("uneven",))
    with pytest.raises(ModelError, match="max_degree 1"):
        lab.run_packed(adapter, make, batch, cut, 2, HEADS, torch.float64)
