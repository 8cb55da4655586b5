"""A run's folder: `latest` from the first step on, removed when no step came, and how to go on when one did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from zellige_ray.actors.folder import left_behind, new_folder, point_latest, write_folder
from zellige_ray.actors.prepared import Prepared, Start
from zellige_ray.actors.session import CROWDED, WORKER_BYTES, crowding
from zellige_ray.config import load_config
from zellige_ray.configs import configs
from zellige_ray.data.index import Index
from zellige_ray.data.ledger import Ledger
from zellige_ray.data.record import Record
from zellige_ray.training import checkpoint_files


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    config = load_config(configs["mini"], [f"folder={tmp_path}/runs"])
    nothing = Index(())
    made = Prepared(config, new_folder(config), tmp_path, nothing, nothing, 64, Start(), "token")
    write_folder(made)
    return made


def commit(folder: Path) -> None:
    ledger = Ledger(folder / "ledger.jsonl")
    ledger.append(Record(1, 0, ("a",), "plan", 0, 1, 0.5))
    ledger.close()


def test_a_run_without_a_step_leaves_no_folder_and_latest_stays(prepared: Prepared) -> None:
    earlier = replace(prepared, folder=prepared.folder.with_name("earlier"))
    write_folder(earlier)
    assert point_latest(earlier.folder) == ""
    Ledger(prepared.folder / "ledger.jsonl").close()
    assert left_behind(prepared) == ""
    assert not prepared.folder.exists()
    assert (prepared.folder.parent / "latest").resolve() == earlier.folder


def test_a_run_with_a_step_stays_and_says_where_it_is_or_how_to_go_on(prepared: Prepared) -> None:
    commit(prepared.folder)
    assert left_behind(prepared) == f"no checkpoint is complete; what the run left is in {prepared.folder}"
    partial = checkpoint_files.partial_folder(prepared.folder, 1)
    (partial / checkpoint_files.TENSORS).touch()
    checkpoint_files.seal(partial, checkpoint_files.Position(1, {}, {}, 64, "", 0))
    assert left_behind(prepared) == f"to go on: the same command, with resume={prepared.folder}"
    assert prepared.folder.exists()


@pytest.mark.parametrize("ledger", ["", "garbage\nmore\n"])
def test_what_a_run_found_and_what_nobody_can_read_is_never_removed(prepared: Prepared, ledger: str) -> None:
    (prepared.folder / "ledger.jsonl").write_text(ledger)
    resumed = prepared if ledger else replace(prepared, start=Start(0, checkpoint="somewhere"))
    assert left_behind(resumed).startswith("no checkpoint is complete")
    assert prepared.folder.exists()


def test_latest_that_can_not_be_moved_is_said(prepared: Prepared) -> None:
    (prepared.folder.parent / "latest").mkdir()
    assert "latest does not point to" in point_latest(prepared.folder)


def test_fifty_workers_on_two_cores_are_a_warning_with_the_figures() -> None:
    text = crowding(50, 2, 24 << 30)
    assert text.startswith("workers.count is 50: this machine has 2 CPU cores and 24.0 GiB, the processes alone take")
    assert f"{50 * WORKER_BYTES / 2**30:.1f} GiB; lower workers.count" in text
    assert crowding(CROWDED * 2, 2, 24 << 30) == ""
    assert "1 CPU core and 1.0 GiB" in crowding(2, 1, 1 << 30)
