"""A run on two data sets: the same on any number of ranks, and from a checkpoint in the middle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.actors.local_pool import LocalPool
from tests.actors.test_invariance import curve, make_config, worst
from tests.actors.tiny_data import TEXT_DIM, write_cache
from zellige_ray.actors.driver import Driver, Start
from zellige_ray.config import RunConfig
from zellige_ray.data.gather import gather
from zellige_ray.data.index import data_set_of
from zellige_ray.data.ledger import read, verify
from zellige_ray.data.sampler import SamplerState
from zellige_ray.models.specs import get_spec
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event
from zellige_ray.training import checkpoint_files

pytestmark = pytest.mark.dist
STEPS, HALF = 12, 6


def train(folder: Path, config: RunConfig, start: Start) -> list[float]:
    latents, events = gather(config.data, get_spec("dit")), list[Event]()
    train_index, held_out = latents.index.split(config.data.held_out, config.seed)
    pool = LocalPool(config, str(latents.cache.folder))
    folder.mkdir(exist_ok=True)
    Driver(config, folder, pool, train_index, held_out, TEXT_DIM, start, events.append).run()
    return curve(events)


def test_a_mixture_is_the_same_run_on_any_number_of_ranks_and_across_a_resume(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    one, two = write_cache(tmp_path / "one"), write_cache(tmp_path / "two")
    sources = {"one": {"source": str(one.folder), "ratio": 3.0}, "two": {"source": str(two.folder), "ratio": 1.0}}
    settings: dict[str, Any] = {
        "data": {"sources": sources, "held_out": 4},
        "model": {"name": "dit", "layers": 1, "heads": 3, "head_dim": 12},
        "placement": {"hardware": "cpu"},
    }

    def config(workers: int, steps: int) -> RunConfig:
        return make_config(one, workers, steps=steps, **settings)

    alone = train(tmp_path / "alone", config(1, STEPS), Start())
    begun = train(tmp_path / "parted", config(3, HALF), Start())
    checkpoint = checkpoint_files.newest(tmp_path / "parted")
    assert checkpoint is not None
    position = checkpoint_files.read_position(checkpoint)
    start = Start(position.step, SamplerState.from_json(position.sampler), str(checkpoint))
    again = train(tmp_path / "parted", config(2, STEPS), start)
    assert worst([*begun, *again], alone) <= 1e-10
    used = [
        [r.sample_ids for r in read(tmp_path / name / run_folder.LEDGER) if r.event is None]
        for name in ("alone", "parted")
    ]
    assert used[0] == used[1]
    report = verify(tmp_path / "parted" / run_folder.LEDGER)
    assert report.ok
    assert report.complete_passes >= 3
    counts = Counter(data_set_of(sample) for ids in used[0] for sample in ids)
    assert abs(counts["one"] - 3 * counts["two"]) <= 4
