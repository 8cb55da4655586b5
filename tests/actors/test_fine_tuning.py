"""Fine-tuning through the driver: from an export, with adapters, with frozen parts; the same on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.actors.local_pool import LocalPool
from tests.actors.test_invariance import curve, make_config, resumed, train, worst
from tests.actors.tiny_data import write_cache
from zellige_ray.actors.messages import Decision, Invitation
from zellige_ray.actors.worker import Worker
from zellige_ray.config import ModelConfig, RunConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.errors import CheckpointError
from zellige_ray.models import get_adapter
from zellige_ray.models.architecture import resolve_run
from zellige_ray.models.folders import WEIGHTS
from zellige_ray.monitor.events import Event, HeldOutEvent
from zellige_ray.training import checkpoint_files
from zellige_ray.training.export import LORA_WEIGHTS, export_lora, export_model

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


ADAPTED: dict[str, Any] = {
    "lora": {"model": {"lora": {"rank": 2, "targets": ["to_q", "to_v", "*.net.2"]}}, "frozen": "base_layer"},
    "parts": {"model": {"train": ["blocks.1.*", "proj_out.*"]}, "frozen": "blocks.0."},
}


@pytest.mark.parametrize("kind", ADAPTED)
def test_what_trains_of_a_frozen_model_is_the_same_on_more_ranks_with_a_death_and_a_newcomer(
    cache: LatentCache, base: tuple[Path, float, float], tmp_path: Path, kind: str
) -> None:
    def kill(worker: str, method: str, nth: int) -> bool:
        return method == "step" and (worker, nth) == ("worker-1", 3)

    folder, model = base[0], ADAPTED[kind]["model"] | {"checkpointing": "full"}
    one, alone = run(cache, tmp_path / "one", fine_tuned(cache, folder, steps=6, model=model))
    config = fine_tuned(cache, folder, workers=3, steps=6, model=model)
    (tmp_path / "three").mkdir()
    pool = LocalPool(config, str(cache.folder), kill, spares=1)
    events, summary = train(tmp_path / "three", cache, config, pool)
    assert summary["replans"] == 1 and 3 in summary["world_sizes"]
    assert worst(curve(events), curve(one)) <= 1e-10
    assert held_out(events)[-1] == pytest.approx(held_out(one)[-1], rel=1e-10)
    start = get_adapter("wan").build(config.model, 8, config.seed, torch.float64, "cpu").state_dict()
    trained, moved = alone.workers["worker-0"]._module.state_dict(), set[str]()
    for name, tensor in pool.workers["worker-3"]._module.state_dict().items():
        assert torch.allclose(tensor, trained[name], rtol=0, atol=1e-9)
        if not torch.equal(tensor, start[name]):
            moved.add(name)
    assert moved and not [name for name in moved if ADAPTED[kind]["frozen"] in name]


def test_adapters_of_a_sharded_run_go_on_in_another_layout_and_are_exported_as_one_process_trains_them(
    cache: LatentCache, base: tuple[Path, float, float], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"model": ADAPTED["lora"]["model"], "placement": {"hardware": "cpu"}}
    whole, alone = run(cache, tmp_path / "whole", fine_tuned(cache, base[0], steps=6, **settings))
    part = tmp_path / "part"
    first, _ = run(cache, part, fine_tuned(cache, base[0], 3, steps=3, state={"layout": "fsdp"}, **settings))
    config = fine_tuned(cache, base[0], 4, steps=6, state={"layout": "hsdp"}, **settings)
    pool = LocalPool(config, str(cache.folder), node_of=lambda n: f"node-{n // 2}")
    events, _ = train(part, cache, config, pool, resumed(part))
    assert worst([*curve(first), *curve(events)], curve(whole)) <= 1e-10
    export_lora(str(part), str(tmp_path / "adapters"), weights="raw")
    written = load_file(tmp_path / "adapters" / LORA_WEIGHTS)
    module = alone.workers["worker-0"]._module
    adapters = {n.replace(".default.", "."): p for n, p in module.named_parameters() if p.requires_grad}
    assert written.keys() == {f"transformer.{n}" for n in adapters}
    assert all(torch.allclose(written[f"transformer.{n}"], p, rtol=0, atol=1e-9) for n, p in adapters.items())


def test_adapters_go_on_from_a_checkpoint_beside_their_own_base_and_no_other(
    cache: LatentCache, base: tuple[Path, float, float], tmp_path: Path
) -> None:
    model = ADAPTED["lora"]["model"]
    config = fine_tuned(cache, base[0], steps=3, model=model)
    run(cache, tmp_path / "part", config)
    checkpoint = checkpoint_files.newest(tmp_path / "part")
    assert sum(f.stat().st_size for f in checkpoint.iterdir()) < 0.5 * (base[0] / WEIGHTS).stat().st_size  # type: ignore[union-attr]
    again = Worker("again", "node", config, str(cache.folder), lambda store: store)
    begin = Invitation(epoch=0, rank=0, node_of_rank=(0,), seats=1, store=None, decided=Decision(3))
    assert again.setup(str(checkpoint)).step == 3
    assert again.join(begin).status == "ok"
    other = config.model_copy(update={"model": config.model.model_copy(update={"init_from": None}), "seed": 3})
    stranger = Worker("other", "node", other, str(cache.folder), lambda store: store)
    stranger.setup(str(checkpoint))
    with pytest.raises(CheckpointError, match="were trained beside other weights"):
        stranger.join(begin)
