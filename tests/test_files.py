"""Files written whole: a disk that refuses leaves the old file, links are followed, devices are written into."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from zellige_ray.files import write_file
from zellige_ray.words import counted


def test_a_file_is_replaced_and_no_draft_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_file(path, "one")
    write_file(path, b"two", sync=True)
    assert path.read_text() == "two" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_a_disk_that_refuses_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    script = f"""
import resource
from pathlib import Path
from zellige_ray.files import write_file
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_file(Path({str(tmp_path)!r}) / "a", b"x" * 5000)
except OSError as fault:
    print(fault.strerror)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "File too large\n", resource.getrlimit(resource.RLIMIT_FSIZE)
    assert (tmp_path / "a").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_folder_is_refused_with_the_cause(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Is a directory"):
        write_file(tmp_path, "text")
    with pytest.raises(OSError, match="No such file"):
        write_file(tmp_path / "nowhere" / "a", "text")


@pytest.mark.parametrize(
    ("number", "one", "many", "text"),
    [(1, "batch", "batches", "1 batch"), (0, "rank", "", "0 ranks"), (2, "batch", "batches", "2 batches")],
)
def test_plural_forms(number: int, one: str, many: str, text: str) -> None:
    assert counted(number, one, many) == text
