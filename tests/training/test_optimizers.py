"""Optimizers and schedules: the same step by every implementation, and a rate for every step of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from zellige_ray.config import OptimizerConfig
from zellige_ray.errors import ConfigError
from zellige_ray.training import checkpoint_io
from zellige_ray.training.optimizers import HostAdamW, check_device, optimizers
from zellige_ray.training.schedules import lr_at, schedules
from zellige_ray.training.state import TrainState


def make_state(device: str = "cpu", dtype: torch.dtype = torch.float64, **settings: Any) -> TrainState:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).to(device, dtype)
    return TrainState(module, OptimizerConfig(lr=0.1, warmup_steps=0, **settings), total_steps=9)


def steps(state: TrainState, first: int, last: int) -> torch.Tensor:
    for step in range(first, last + 1):
        generator = torch.Generator().manual_seed(step)
        for p in state.module.parameters():
            p.grad.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))  # type: ignore[union-attr]
        state.apply(step)
    return torch.cat([p.detach().flatten() for p in state.module.parameters()]).cpu()


OTHERS = [{"fused": True}, {"offload": True}]


def test_every_name_of_the_configuration_has_its_line_in_the_dict() -> None:
    fields = OptimizerConfig.model_fields
    assert set(get_args(fields["schedule"].annotation)) == schedules.keys()
    assert set(get_args(fields["name"].annotation)) == optimizers.keys()


@pytest.mark.parametrize("settings", OTHERS, ids=str)
def test_every_implementation_of_a_step_gives_the_same_weights(settings: dict[str, Any]) -> None:
    plain, other = steps(make_state(), 1, 4), steps(make_state(**settings), 1, 4)
    assert float((other - plain).abs().max()) <= 1e-12
    assert float((steps(make_state(weight_decay=0.5), 1, 4) - plain).abs().max()) > 1e-3


@pytest.mark.parametrize("settings", OTHERS, ids=str)
@pytest.mark.parametrize("then", [{}, *OTHERS], ids=str)
def test_a_checkpoint_of_one_implementation_goes_on_with_any_other(
    settings: dict[str, Any], then: dict[str, Any], tmp_path: Path
) -> None:
    whole = steps(make_state(), 1, 5)
    first, second = make_state(**settings), make_state(**then)
    steps(first, 1, 3)
    checkpoint_io.save(str(tmp_path), first)
    checkpoint_io.load(str(tmp_path), second)
    assert float((steps(second, 4, 5) - whole).abs().max()) <= 1e-12


@pytest.mark.gpu
@pytest.mark.parametrize("settings", OTHERS, ids=str)
def test_on_a_gpu_every_implementation_gives_the_same_weights_and_keeps_its_state_where_it_says(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    state = make_state("cuda", **settings)
    assert float((steps(state, 1, 3) - steps(make_state("cuda"), 1, 3)).abs().max()) <= 1e-12
    again = make_state("cuda", **settings)
    checkpoint_io.save(str(tmp_path), state)
    checkpoint_io.load(str(tmp_path), again)
    for one in (state, again):
        moments = [one.optimizer.state[p]["exp_avg"] for _, p in one.pieces]
        assert {m.device.type for m in moments} == ({"cpu"} if "offload" in settings else {"cuda"})
    assert float((steps(again, 4, 5) - steps(make_state("cuda"), 1, 5)).abs().max()) <= 1e-12


def test_offloaded_moments_are_host_tensors_and_the_option_is_refused_without_a_gpu() -> None:
    state = make_state(offload=True)
    steps(state, 1, 1)
    assert isinstance(state.optimizer, HostAdamW)
    assert {m.device.type for _, p in state.pieces for m in state.optimizer.state[p].values()} == {"cpu"}
    check_device(OptimizerConfig(offload=True), "cuda")
    check_device(OptimizerConfig(fused=True), "cpu")
    with pytest.raises(ConfigError, match=r"optimizer.offload .* these workers run on CPUs"):
        check_device(OptimizerConfig(offload=True), "cpu")


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", [1.0, 0.883, 0.6, 0.2, 0.2]),
        ("linear", [1.0, 0.8, 0.6, 0.2, 0.2]),
        ("stable", [1.0, 1.0, 1.0, 0.2, 0.2]),
    ],
)
def test_a_schedule_falls_from_the_full_rate_to_the_final_one_at_the_last_step(
    schedule: Any, rates: list[float]
) -> None:
    final = None if schedule == "constant" else 0.2
    config = OptimizerConfig(lr=2.0, warmup_steps=4, schedule=schedule, final_lr=final)
    assert [lr_at(config, s, 24) / 2 for s in (4, 9, 14, 24, 30)] == pytest.approx(rates, abs=1e-3)
    assert lr_at(config, 1, 24) == pytest.approx(0.5)


def test_the_rate_that_a_schedule_leaves_is_a_tenth_unless_it_is_set_to_nothing() -> None:
    config = OptimizerConfig(lr=1.0, warmup_steps=0, schedule="linear")
    assert lr_at(config, 10, 10) == pytest.approx(0.1)
    assert lr_at(config.model_copy(update={"final_lr": 0.0}), 10, 10) == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"final_lr": 0.5}, r"optimizer.final_lr is 0.5, which optimizer.schedule constant never comes to"),
        ({"fused": True, "offload": True}, r"optimizer.offload .* optimizer.fused"),
    ],
)
def test_settings_that_contradict_each_other_are_both_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**settings)
