"""Stores behind URLs: drivers that are missing, folders there and back, a marker that comes last and goes first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from zellige_ray import urls
from zellige_ray.cli import main
from zellige_ray.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("checkpoint.to=s3://bucket/runs", "checkpoint.to begins with s3://, whose driver s3fs is not installed"),
        ("resume=gs://bucket/run", "resume begins with gs://, whose driver gcsfs is not installed"),
        (
            "model.init_from=s3://secret@bucket/x",
            "model.init_from begins with s3://, whose driver s3fs is not installed",
        ),
        ("checkpoint.to=nowhere://x", "checkpoint.to begins with nowhere://, which fsspec has no driver for"),
        ("checkpoint.to=folder", "checkpoint.to: expected pattern '://'"),
    ],
)
def test_a_url_without_its_driver_ends_before_anything_starts(
    override: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for driver in ("s3fs", "gcsfs"):  # also where they are installed
        monkeypatch.setitem(sys.modules, driver, None)
    monkeypatch.chdir(tmp_path)
    for verb in ("train", "config"):
        assert main([verb, override]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert "secret" not in err
    assert not list(tmp_path.iterdir())


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"file://{tmp_path / 'store'}"


def test_a_folder_comes_back_as_it_was_put(store: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "a").write_bytes(b"one")
    (tmp_path / "in" / "sub" / "b").write_bytes(b"three")
    urls.put(tmp_path / "in", store, last="a")
    urls.write(urls.join(store, "sub", "c"), b"")
    assert urls.listing(store) == {"a": 3, "sub/b": 5, "sub/c": 0}
    urls.fetch(store, tmp_path / "out", [name for name in urls.listing(store) if name.startswith("sub/")])
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == {"b": b"three", "c": b""}
    urls.remove(urls.join(store, "sub"), first="b")
    assert urls.listing(store) == {"a": 3}
    assert urls.listing(urls.join(store, "nothing")) == {}


def test_the_marker_is_written_last_and_removed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("put_file", "rm_file"):
        real = getattr(MemoryFileSystem, name)

        def note(self: MemoryFileSystem, *args: str, real: object = real, name: str = name, **more: object) -> None:
            done.append(f"{name} {args[-1].rpartition('/')[2]}")
            real(self, *args, **more)  # type: ignore[operator]

        monkeypatch.setattr(MemoryFileSystem, name, note)
    for file in ("a-marker", "b", "c"):
        (tmp_path / file).write_text(file)
    urls.put(tmp_path, "memory://order", last="a-marker")
    assert [line for line in done if line.startswith("put")] == ["put_file b", "put_file c", "put_file a-marker"]
    done.clear()
    urls.remove("memory://order", first="a-marker")
    assert done[0] == "rm_file a-marker"


def test_whatever_a_driver_raises_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise RuntimeError("access denied")

    monkeypatch.setattr(MemoryFileSystem, "find", refuse)
    with pytest.raises(OSError, match="memory:// answered RuntimeError: access denied"):
        urls.listing("memory://x")
    with pytest.raises(ConfigError):
        urls.check_url("what://x", "knob")


def test_a_store_can_not_write_outside_of_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(MemoryFileSystem, "find", lambda self, root, **more: {f"{root}/../evil": {"size": 1}})
    with pytest.raises(OSError, match="lies outside"):
        urls.fetch("memory://x", tmp_path / "in", urls.listing("memory://x"))
