"""A disk that is really full: a small file system under the checkpoints."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.local_pool import LocalPool
from tests.actors.test_invariance import TEXT_DIM, make_config
from tests.actors.tiny_data import write_cache
from zellige_ray.actors.driver import Driver
from zellige_ray.actors.prepared import Start
from zellige_ray.errors import CheckpointError
from zellige_ray.monitor.events import Event, NoteEvent, StepEvent

pytestmark = pytest.mark.dist


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder.parent
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_full_or_read_only_disk_is_a_warning_with_figures_and_training_goes_on(
    small_disk: Path, tmp_path: Path, read_only: bool
) -> None:
    if read_only:
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk / "checkpoints")], check=True)
    cache = write_cache(tmp_path / "cache")
    model: dict[str, Any] = {"name": "dit", "layers": 2, "heads": 4, "head_dim": 24}
    config = make_config(cache, 2, steps=6, checkpoint={"every": 3}, model=model)
    index, held_out = cache.index().split(config.data.held_out, config.seed)
    events: list[Event] = []
    pool = LocalPool(config, str(cache.folder))
    driver = Driver(config, small_disk, pool, index, held_out, TEXT_DIM, Start(), events.append)
    with pytest.raises(CheckpointError, match="no checkpoint of step 6"):
        driver.run()
    assert [e.step for e in events if isinstance(e, StepEvent)] == [1, 2, 3, 4, 5, 6]
    warnings = [e.text for e in events if isinstance(e, NoteEvent) and "no checkpoint of step 3" in e.text]
    assert len(warnings) == 1
    assert ("Read-only file system" if read_only else "No space left on device") in warnings[0]
    assert "MB are free" in warnings[0]
    assert not list((small_disk / "checkpoints").glob("step-*"))
