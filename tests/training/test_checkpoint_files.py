"""Only complete checkpoints are seen, and only those of this run fit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from zellige_ray.config import RunConfig, parse_config
from zellige_ray.errors import CheckpointError
from zellige_ray.training.checkpoint_files import (
    MARKER,
    TENSORS,
    Position,
    check,
    damages,
    find,
    model_identity,
    newest,
    partial_folder,
    prune,
    read_position,
    seal,
)

CONFIG: RunConfig = parse_config({"data": {"source": "mini"}, "batch": {"samples": 4}})


def position(step: int) -> Position:
    return Position(step, {"pass_": 0, "cursor": step}, model_identity(CONFIG), 64, "print", 0)


def write(run: Path, step: int) -> Path:
    folder = partial_folder(run, step)
    (folder / "data").write_bytes(b"x")
    (folder / TENSORS).touch()
    return seal(folder, position(step))


def test_the_newest_complete_one_wins_and_what_is_partial_is_never_seen(tmp_path: Path) -> None:
    write(tmp_path, 9)
    sealed = write(tmp_path, 10)
    partial_folder(tmp_path, 11)
    assert newest(tmp_path) == sealed
    assert find(str(tmp_path)) == (tmp_path, sealed)
    assert find(str(sealed)) == (tmp_path, sealed)
    assert read_position(sealed) == position(10)


def test_old_ones_and_remains_are_pruned(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    partial_folder(tmp_path, 4)
    prune(tmp_path, keep=2)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000003"]


def test_an_incomplete_or_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint in"):
        find(str(tmp_path))
    sealed = write(tmp_path, 1)
    (sealed / MARKER).unlink()
    with pytest.raises(CheckpointError, match="is not complete"):
        find(str(sealed))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / "data").write_bytes(b""), "data has 0 bytes, it had 1"),
        (lambda folder: (folder / "data").unlink(), "data is gone"),
        (lambda folder: (folder / MARKER).write_text("{"), "cannot read checkpoint"),
        (lambda folder: (folder / MARKER).write_text('{"format": "zellige.checkpoint/1", "files": []}'), "object"),
    ],
)
def test_a_damaged_one_is_passed_over_for_the_one_before_it_and_that_is_told(
    tmp_path: Path, harm: Callable[[Path], object], said: str
) -> None:
    whole, torn = write(tmp_path, 9), write(tmp_path, 10)
    assert damages(tmp_path) == []
    harm(torn)
    assert newest(tmp_path) == whole == find(str(tmp_path))[1]
    (told,) = damages(tmp_path, behind=whole)
    assert told.startswith("checkpoint step-00000010 is passed over: ") and said in told
    assert damages(tmp_path, behind=torn) == [], "nobody needs older ones"
    with pytest.raises(CheckpointError, match=r"is damaged: .*name its run folder to take an older one"):
        find(str(torn))
    write(tmp_path, 11)
    prune(tmp_path, keep=2)
    assert whole.exists(), "a damaged one does not push out a good one"


def test_when_all_are_damaged_each_is_named(tmp_path: Path) -> None:
    (write(tmp_path, 1) / "data").unlink()
    with pytest.raises(
        CheckpointError, match=r"no complete checkpoint in .*step-00000001 is passed over: data is gone"
    ):
        find(str(tmp_path))


def test_a_checkpoint_of_another_model_data_set_or_seed_is_refused_by_name() -> None:
    other = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update={"layers": 6}), "seed": 5})
    check(position(1), CONFIG, 64, "print")
    with pytest.raises(
        CheckpointError, match=r"model.layers is 4 there, 6 here; seed is 0 there, 5 here; the data set"
    ):
        check(position(1), other, 64, "other print")
    with pytest.raises(CheckpointError, match="text embeddings have width 64 there, 32 here"):
        check(position(1), CONFIG, 32, "print")


def test_a_checkpoint_on_a_disk_that_the_driver_does_not_see_is_never_sealed(tmp_path: Path) -> None:
    folder = partial_folder(tmp_path, 1)
    with pytest.raises(CheckpointError, match="set folder to storage that all nodes share"):
        seal(folder, position(1))
    assert newest(tmp_path) is None
