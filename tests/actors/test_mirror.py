"""Checkpoints copied to a URL while a run goes on, and the run that goes on from there alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.actors.local_pool import LocalPool
from tests.actors.test_invariance import curve, make_config, worst
from tests.actors.tiny_data import TEXT_DIM, write_cache
from zellige_ray import urls
from zellige_ray.actors import mirror as mirrors
from zellige_ray.actors.driver import Driver
from zellige_ray.actors.launch import check
from zellige_ray.actors.mirror import Mirror
from zellige_ray.data.ledger import verify
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, NoteEvent


@pytest.mark.dist
def test_a_run_whose_folder_is_gone_goes_on_from_its_url_and_the_ledger_is_whole(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    cache, store = write_cache(tmp_path / "cache"), f"memory://{tmp_path.name}"
    settings: dict[str, Any] = {
        "model": {"name": "dit", "layers": 1, "heads": 3, "head_dim": 12},
        "placement": {"hardware": "cpu"},
        "checkpoint": {"every": 2, "keep": 1, "to": store},
        "folder": str(tmp_path / "fetched"),
    }

    def train(folder: Path, steps: int, **more: Any) -> list[float]:
        config = make_config(cache, 2, steps=steps, **settings | more)
        prepared = check(config, lambda event: None)
        folder = prepared.folder if config.resume else folder
        folder.mkdir(parents=True, exist_ok=True)
        events: list[Event] = []
        pool = LocalPool(config, str(cache.folder))
        Driver(
            prepared.config, folder, pool, prepared.train, prepared.held_out, TEXT_DIM, prepared.start, events.append
        ).run()
        return curve(events)

    whole = train(tmp_path / "whole", 8)
    begun = train(tmp_path / "lost" / "run", 5)
    assert {n.split("/")[1] for n in urls.listing(f"{store}/run") if "/" in n} == {"step-00000005"}
    again = train(Path(), 8, resume=f"{store}/run")
    assert worst([*begun, *again], whole) <= 1e-10
    report = verify(tmp_path / "fetched" / "run" / run_folder.LEDGER)
    assert (report.ok, report.steps) == (True, 8)


def test_the_newest_of_those_that_wait_is_copied_next_and_a_fault_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, copied, notes = threading.Event(), list[str](), list[NoteEvent]()

    def copy(run: Path, checkpoint: Path, url: str, keep: int, beside: tuple[str, ...]) -> None:
        gate.wait(20)
        copied.append(checkpoint.name)
        if checkpoint.name == "b":
            raise OSError("the bucket is gone")

    monkeypatch.setattr(mirrors, "copy_out", copy)
    mirror = Mirror(tmp_path / "run", "memory://x/", 2, notes.append)
    for name in ("a", "skipped", "b"):
        mirror.take(tmp_path / name)
    assert [path.name for path in mirror.reads] == ["a", "b"]
    gate.set()
    mirror.finish(20)
    assert copied == ["a", "b"]
    assert [note.text for note in notes] == ["b was not copied to checkpoint.to: the bucket is gone; training goes on"]
    assert mirror.reads == ()
    idle = Mirror(tmp_path / "run", None, 2, notes.append)
    idle.take(tmp_path / "a")
    assert idle.poll()
