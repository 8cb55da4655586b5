"""Fine-tuning through the driver: from an export, with adapters, with frozen parts; the same on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.actors.local_pool import LocalPool
from tests.actors.test_invariance import curve, make_config, train
from tests.actors.tiny_data import write_cache
from zellige_ray.config import ModelConfig, RunConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.models import get_adapter
from zellige_ray.models.architecture import resolve_run
from zellige_ray.monitor.events import Event, HeldOutEvent
from zellige_ray.training.export import export_model

pytestmark = pytest.mark.dist
WAN = {"name": "wan", "layers": 2, "heads": 3, "head_dim": 16}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    torch.set_num_threads(1)
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


@pytest.fixture(scope="module", autouse=True)
def _double_casts() -> Iterator[None]:
    """diffusers' hard-coded `.float()` would hide everything below 1e-7."""
    get_adapter("wan").make(ModelConfig(layers=1), 8)  # loads diffusers outside of the workers' time-outs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else x.to(torch.float32))
        yield


def run(cache: LatentCache, folder: Path, config: RunConfig) -> tuple[list[Event], LocalPool]:
    folder.mkdir()
    pool = LocalPool(config, str(cache.folder))
    events, _ = train(folder, cache, config, pool)
    return events, pool


def held_out(events: list[Event]) -> list[float]:
    return [e.loss for e in events if isinstance(e, HeldOutEvent)]


def fine_tuned(cache: LatentCache, folder: Path, workers: int = 1, lr: float = 0.01, **settings: Any) -> RunConfig:
    model = {"init_from": str(folder), **settings.pop("model", {})}
    return resolve_run(make_config(cache, workers, model=model, optimizer={"lr": lr, "warmup_steps": 0}, **settings))


@pytest.fixture(scope="module")
def base(cache: LatentCache, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float, float]:
    """An exported model, the first loss of its run, and its held-out loss at the end."""
    folder = tmp_path_factory.mktemp("base")
    events, _ = run(cache, folder / "run", make_config(cache, 1, steps=12, model=WAN))
    export_model(str(folder / "run"), str(folder / "out"), weights="raw")
    return folder / "out", curve(events)[0], held_out(events)[-1]


def test_an_export_begun_from_has_the_held_out_loss_of_its_run_and_goes_on_learning(
    cache: LatentCache, base: tuple[Path, float, float], tmp_path: Path
) -> None:
    folder, first, loss = base
    still, _ = run(cache, tmp_path / "still", fine_tuned(cache, folder, lr=1e-30, steps=1))
    assert held_out(still)[-1] == pytest.approx(loss, rel=1e-12)
    on, _ = run(cache, tmp_path / "on", fine_tuned(cache, folder, workers=3, steps=3))
    assert curve(on)[0] < 0.95 * first, "the batch and the noise of the first step of its run, after training"
    assert held_out(on)[-1] != pytest.approx(loss, rel=1e-3)
