"""AdamW with moments of 8 bits: near the exact one, saved and handed on bit for bit, refused where it can't be."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zellige_ray.config import OptimizerConfig, parse_config
from zellige_ray.errors import CheckpointError, ConfigError
from zellige_ray.training import checkpoint_io
from zellige_ray.training.blockwise import num_bytes
from zellige_ray.training.state import TrainState

RUN = {"data": {"source": "x"}, "batch": {"samples": 2}}


@pytest.fixture
def installed() -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")


def make_state(name: str = "adamw8bit", layout: str = "replicated") -> TrainState:
    """A layer above bitsandbytes' least size for 8 bits, whose last block of 256 is not full, and one below it."""
    module = nn.Sequential(nn.Linear(70, 65), nn.Linear(65, 3))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    config = OptimizerConfig(name=name, lr=0.01, warmup_steps=0)
    return TrainState(module, config, total_steps=20, layout=layout)


def steps(state: TrainState, first: int, last: int) -> torch.Tensor:
    for step in range(first, last + 1):
        generator = torch.Generator().manual_seed(step)
        for p in state.module.parameters():
            p.grad.copy_(torch.randn(p.shape, generator=generator))  # type: ignore[union-attr]
        state.apply(step)
    return torch.cat([p.detach().flatten() for p in state.module.parameters()])


def test_it_steps_as_adamw_does_with_a_quarter_of_its_moments(installed: None) -> None:
    exact, state = make_state("adamw"), make_state()
    start = torch.cat([p.detach().flatten() for p in state.module.parameters()]).clone()
    wanted, found = steps(exact, 1, 8), steps(state, 1, 8)
    moved = float((wanted - start).norm())
    assert 0 < float((found - wanted).norm()) < 0.1 * moved
    large = {"0.weight": state.whole()["0.weight"]}
    assert num_bytes(large) < 0.27 * 8 * 70 * 65
    assert large["0.weight"]["state1"].dtype == torch.uint8
    assert state.whole()["1.weight"]["state1"].dtype == torch.float32


def test_a_checkpoint_goes_on_bit_for_bit(installed: None, tmp_path: Path) -> None:
    whole, first, second = steps(make_state(), 1, 9), make_state(), make_state()
    steps(first, 1, 5)
    checkpoint_io.save(str(tmp_path), first)
    checkpoint_io.load(str(tmp_path), second)
    assert second.step == 5
    assert torch.equal(steps(second, 6, 9), whole)


def test_a_state_dict_goes_on_bit_for_bit(installed: None) -> None:
    whole, first, second = steps(make_state(), 1, 9), make_state(), make_state()
    steps(first, 1, 5)
    second.load_state_dict(first.state_dict())
    assert torch.equal(steps(second, 6, 9), whole)


def test_threads_that_step_at_once_do_not_disturb_each_other(installed: None) -> None:
    torch.set_num_threads(1)
    wanted = steps(make_state(), 1, 10)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: steps(make_state(), 1, 10), range(40)))
    assert all(torch.equal(one, wanted) for one in found)


@pytest.mark.parametrize(("there", "here"), [("adamw", "adamw8bit"), ("adamw8bit", "adamw")])
def test_a_checkpoint_of_the_other_kind_is_refused_and_changes_nothing(
    installed: None, there: str, here: str, tmp_path: Path
) -> None:
    saved, state = make_state(there), make_state(here)
    steps(saved, 1, 2)
    before = steps(state, 1, 1).clone()
    checkpoint_io.save(str(tmp_path), saved)
    with pytest.raises(CheckpointError, match=f"optimizer.name is {there} there, {here} here"):
        checkpoint_io.load(str(tmp_path), state)
    assert state.step == 1
    assert torch.equal(torch.cat([p.detach().flatten() for p in state.module.parameters()]), before)


def test_the_bytes_of_a_rank_are_those_that_it_holds(installed: None) -> None:
    state = make_state()
    held = [*state.tensors(), *[u.own_grad for u in state.layout.units]]
    assert state.bytes_at(state.layout.place) == sum(t.numel() * t.element_size() for t in held)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"state": {"layout": "fsdp"}}, "optimizer.name is adamw8bit.* state.layout is fsdp"),
        ({"state": {"layout": "hsdp"}}, "optimizer.name is adamw8bit.* state.layout is hsdp"),
        ({"optimizer": {"fused": True}}, "optimizer.fused is a way of optimizer.name adamw"),
        ({"optimizer": {"offload": True}}, "optimizer.offload is a way of optimizer.name adamw"),
    ],
)
def test_what_it_can_not_be_combined_with_names_both(settings: dict[str, Any], said: str) -> None:
    optimizer = {"name": "adamw8bit", **settings.pop("optimizer", {})}
    with pytest.raises(ConfigError, match=said):
        parse_config({**RUN, "optimizer": optimizer, **settings})


def test_without_its_package_it_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    from zellige_ray.actors import names

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(names.importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else object())
    config = parse_config({**RUN, "optimizer": {"name": "adamw8bit"}, "sinks": []})
    with pytest.raises(ConfigError, match=r"pip install 'zellige-ray\[adamw8bit\]'"):
        names.look_up(config)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ConfigError, match=r"pip install 'zellige-ray\[adamw8bit\]'"):
        make_state()
