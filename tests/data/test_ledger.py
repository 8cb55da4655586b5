"""The ledger's file and what it proves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.ledger import Ledger, Record, read, read_header, verify
from zellige_ray.errors import DataError

INDEX = Index.of(SampleMeta(name, "image", (16, 1, 2, 2), 0) for name in "abcd")


def commit(step: int, pass_: int, ids: str, epoch: int = 0) -> Record:
    return Record(step, pass_, tuple(ids), f"hash{step}", epoch, 2, 0.5)


def write(path: Path, *records: Record) -> Path:
    ledger = Ledger(path, INDEX)
    for record in records:
        ledger.append(record)
    ledger.close()
    return path


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    records = [
        commit(1, 0, "ab"),
        Record(1, 0, event="left", epoch=1, world_size=1, detail="w1: killed"),
        commit(2, 0, "cd", 1),
    ]
    path = write(tmp_path / "run" / "ledger.jsonl", *records)
    assert list(read(path)) == records
    assert read_header(path)["ids"] == list("abcd")
    report = verify(path)
    assert report.ok
    assert (report.steps, report.samples, report.complete_passes, report.epochs) == (2, 4, 1, 2)
    assert report.events == (records[1],)


def test_a_complete_walk_of_two_passes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "l", commit(1, 0, "abc"), commit(2, 0, "d"), commit(3, 1, "dc"), commit(4, 1, "b"))
    report = verify(path, INDEX.ids)
    assert report.ok
    assert [(p.complete, p.lost, p.doubled) for p in report.passes] == [(True, (), ()), (False, (), ())]


def test_lost_doubled_and_foreign_samples_are_counted_per_pass(tmp_path: Path) -> None:
    path = write(tmp_path / "l", commit(1, 0, "abb"), commit(2, 0, "c"), commit(3, 1, "zaa"), commit(3, 1, "d"))
    report = verify(path)
    assert not report.ok
    assert report.passes[0].lost == ("d",)
    assert report.passes[0].doubled == ("b",)
    assert (report.passes[1].doubled, report.passes[1].unknown) == (("a",), ("z",))
    assert (report.samples_lost, report.samples_doubled, report.samples_unknown, report.steps_doubled) == (1, 2, 1, 1)


def test_a_missing_step_is_seen(tmp_path: Path) -> None:
    report = verify(write(tmp_path / "l", commit(1, 0, "ab"), commit(3, 0, "cd")))
    assert report.steps_missing == 1
    assert not report.ok


def test_a_rewind_makes_later_commits_void_and_counts_the_replay(tmp_path: Path) -> None:
    rewind = Record(1, 0, event="rewind", detail="checkpoint 1")
    path = write(tmp_path / "l", commit(1, 0, "ab"), commit(2, 0, "cd"), rewind, commit(2, 0, "cd"), commit(3, 1, "a"))
    report = verify(path)
    assert report.ok
    assert (report.steps, report.steps_replayed, report.complete_passes) == (3, 1, 1)


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_a_torn_last_line_is_left_out_and_cut_off_before_the_next_append(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "l", commit(1, 0, "ab"), commit(2, 0, "cd"))
    path.write_bytes(path.read_bytes()[:-cut])
    whole = cut == 1  # only the newline is gone: the record counts
    assert [r.step for r in read(path)] == ([1, 2] if whole else [1])
    ledger = Ledger(path, INDEX)
    assert ledger.last_commit() == (commit(2, 0, "cd") if whole else commit(1, 0, "ab"))
    ledger.append(commit(3, 1, "a"))
    ledger.close()
    assert [r.step for r in read(path)] == ([1, 2, 3] if whole else [1, 3])


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "l", commit(1, 0, "ab"), commit(2, 0, "cd"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1][:9] + b"\n", lines[2]]))
    with pytest.raises(DataError, match="line 2 is broken"):
        verify(path)
    path.write_bytes(lines[0] + b'{"kind":"commit","step":1}\n' + lines[2])
    with pytest.raises(DataError, match="line 2 is not a ledger record"):
        verify(path)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "l", INDEX)
    ledger.append(commit(1, 0, "ab"))
    before = ledger.path.read_bytes()
    real, calls = os.write, 0

    def full(handle: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data[:5])

    with monkeypatch.context() as patch, pytest.raises(DataError, match="No space left"):
        patch.setattr(os, "write", full)
        ledger.append(commit(2, 0, "cd"))
    assert ledger.path.read_bytes() == before
    ledger.append(commit(2, 0, "cd"))
    assert verify(ledger.path).ok
    ledger.close()


def test_the_ledger_of_another_data_set_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "l", commit(1, 0, "ab"))
    with pytest.raises(DataError, match="fingerprint"):
        Ledger(path, Index(INDEX.samples[1:]))


def test_no_ledger_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the ledger"):
        verify(tmp_path / "nothing")
