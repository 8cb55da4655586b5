"""A sample that can't be read on the disk: one rule for all ranks, and for any number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.actors.local_pool import LocalPool
from tests.actors.test_invariance import curve, make_config, train, worst
from tests.actors.tiny_data import write_cache
from zellige_ray.data.audit import verify
from zellige_ray.data.ledger import read
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import MembershipEvent, NoteEvent, StepEvent

pytestmark = pytest.mark.dist


def test_a_batch_goes_on_without_a_corrupt_sample_the_same_way_on_any_number_of_ranks(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    cache = write_cache(tmp_path / "cache")
    settings: dict[str, Any] = {"steps": 6, "placement": {"hardware": "cpu", "policy": "cp"}}
    settings["model"] = {"name": "dit", "layers": 1, "heads": 3, "head_dim": 12}
    config = make_config(cache, 1, **settings)
    train_index, _ = cache.index().split(config.data.held_out, config.seed)
    bad = next(s.id for s in train_index.samples if s.media == "image")
    file = cache.folder / f"{bad}.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    curves, used = [], []
    for workers in (1, 3):
        folder = tmp_path / f"run-{workers}"
        folder.mkdir()
        config = make_config(cache, workers, **settings)
        events, summary = train(folder, cache, config, LocalPool(config, str(cache.folder)))
        records = list(read(folder / run_folder.LEDGER))
        assert [r.detail for r in records if r.event == "quarantined"] == [bad]
        assert any(bad in e.text and "set aside" in e.text for e in events if isinstance(e, NoteEvent))
        assert verify(folder / run_folder.LEDGER, train_index.ids).ok
        assert (summary["steps"], summary["samples_lost"], summary["samples_doubled"]) == (6, 0, 0)
        assert not [e for e in events if isinstance(e, MembershipEvent)]
        curves.append(curve(events))
        used.append([r.sample_ids for r in records if r.event is None])
        sizes = [e.samples for e in events if isinstance(e, StepEvent)]
        # ten samples in batches of four: the last of a pass has two, and one batch of each pass lacks the bad one
        assert sum(sizes[:3]) == sum(sizes[3:]) == 9
    assert used[0] == used[1]
    assert worst(curves[1], curves[0]) <= 1e-10
