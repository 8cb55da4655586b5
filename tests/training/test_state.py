"""The training state: applied once per step, clipped by the true norm, averaged, saved, and read back."""

from pathlib import Path

import pytest
import torch
from torch import nn

from zellige_ray.config import OptimizerConfig
from zellige_ray.errors import CheckpointError
from zellige_ray.training import checkpoint_io
from zellige_ray.training.state import TrainState


def make_state(seed: int = 0, **settings: object) -> TrainState:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).double()
    return TrainState(module, OptimizerConfig(**{"lr": 0.1, "warmup_steps": 0, **settings}), total_steps=24)


def fill_gradients(state: TrainState, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in state.module.parameters():
        assert p.grad is not None
        p.grad.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))


def weights(state: TrainState) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in state.module.parameters()]).clone()


def test_steps_equal_plain_adamw_with_clipping() -> None:
    state = make_state(clip_norm=0.5)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).double()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1, betas=(0.9, 0.95), weight_decay=0.01)
    for step in (1, 2, 3):
        fill_gradients(state, step)
        for p, q in zip(plain.parameters(), state.module.parameters(), strict=True):
            p.grad = q.grad.clone()  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        state.apply(step)
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    assert torch.allclose(weights(state), expected, rtol=0, atol=1e-7)  # torch clips by norm + 1e-6, we by the norm


def test_a_step_is_applied_once_and_none_is_missed() -> None:
    state = make_state()
    fill_gradients(state, 1)
    state.apply(1)
    once = weights(state)
    state.apply(1)
    assert torch.equal(weights(state), once)
    with pytest.raises(ValueError, match="step 3 can't be applied: this rank is at step 1"):
        state.apply(3)


def test_a_skipped_step_counts_and_leaves_every_weight_bit_equal() -> None:
    state = make_state()
    before = weights(state)
    next(state.module.parameters()).grad.fill_(float("nan"))  # type: ignore[union-attr]
    state.apply(1, update=False)
    assert state.step == 1
    assert torch.equal(weights(state), before)


def test_warm_up_is_linear_and_ends() -> None:
    state = make_state(warmup_steps=4)
    assert [state.lr_at(s) for s in (1, 2, 4, 9)] == pytest.approx([0.025, 0.05, 0.1, 0.1])


def test_a_cosine_falls_from_the_full_rate_to_a_tenth() -> None:
    state = make_state(warmup_steps=4, schedule="cosine")
    assert [state.lr_at(s) for s in (2, 4, 14, 24, 30)] == pytest.approx([0.05, 0.1, 0.055, 0.01, 0.01])


def test_the_average_follows_the_weights_and_swaps_in_and_out() -> None:
    state = make_state(ema_decay=0.5)
    start = weights(state)
    fill_gradients(state, 1)
    state.apply(1)
    after = weights(state)
    state.swap_ema()
    decay = 2 / 11
    assert torch.allclose(weights(state), decay * start + (1 - decay) * after)
    state.swap_ema()
    assert torch.equal(weights(state), after)


def test_a_checkpoint_brings_everything_back_and_training_goes_on_bit_equal(tmp_path: Path) -> None:
    state, other = make_state(ema_decay=0.9), make_state(seed=1, ema_decay=0.9)
    for step in (1, 2):
        fill_gradients(state, step)
        state.apply(step)
    checkpoint_io.save(str(tmp_path), state)
    checkpoint_io.load(str(tmp_path), other)
    for s in (state, other):
        fill_gradients(s, 3)
        s.apply(3)
    assert other.step == 3
    assert torch.equal(weights(other), weights(state))
    assert all(torch.equal(a, b) for a, b in zip(other.tensors(), state.tensors(), strict=True))


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    checkpoint_io.save(str(tmp_path), make_state())
    wide = TrainState(nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 2)).double(), OptimizerConfig(), 1)
    with pytest.raises(CheckpointError, match=r"cannot read checkpoint .*Size mismatch"):
        checkpoint_io.load(str(tmp_path), wide)
