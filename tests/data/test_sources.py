"""Folders and manifests, good and bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zellige_ray.data.sources import list_folder, list_manifest, list_source
from zellige_ray.errors import DataError


def test_a_folder_lists_media_with_their_captions(media_folder: Path) -> None:
    (media_folder / "notes.md").write_text("no media")
    (media_folder / ".hidden.png").write_bytes(b"")
    listing = list_folder(media_folder)
    assert [item.id for item in listing.items] == ["red", "short", "sub/blue", "sub/long"]
    assert listing.items[0].caption == "A red wave."
    assert listing.items[1].caption == ""
    assert listing.uncaptioned == ("sub/blue",)
    assert listing.ignored == ("notes.md",)


def test_a_manifest_lists_files_cuts_captions_and_weights(media_folder: Path) -> None:
    rows = [
        {"file": "media/short.mp4", "caption": "all of it", "weight": 2},
        {"file": "media/short.mp4", "id": "cut/one", "start": 2, "frames": 3},
    ]
    manifest = media_folder.parent / "list.jsonl"
    manifest.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    listing = list_manifest(manifest)
    cut, whole = listing.items
    assert (cut.id, cut.start, cut.frames, cut.path) == ("cut/one", 2, 3, media_folder.parent / "media/short.mp4")
    assert (whole.id, whole.caption, whole.weight) == ("media/short", "all of it", 2.0)
    assert listing.uncaptioned == ("cut/one",)


def test_the_key_of_an_item_changes_with_what_it_is_made_of(media_folder: Path) -> None:
    before = {item.id: item.key() for item in list_folder(media_folder).items}
    (media_folder / "red.txt").write_text("another caption")
    with (media_folder / "short.mp4").open("ab") as file:
        file.write(b"\0")
    after = {item.id: item.key() for item in list_folder(media_folder).items}
    assert [name for name in before if before[name] != after[name]] == ["red", "short"]


def test_bad_folders_are_named_errors(media_folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="is empty"):
        list_source(empty)
    (empty / "a.csv").write_text("1,2")
    with pytest.raises(DataError, match="1 other ignored"):
        list_source(empty)
    with pytest.raises(DataError, match="can't be read"):
        list_source(media_folder / "red.png")
    (media_folder / "red.mp4").write_bytes(b"")
    with pytest.raises(DataError, match=r"red\.mp4 and .*red\.png share the id 'red'"):
        list_source(media_folder)
    (media_folder / "red.mp4").unlink()
    (media_folder / "red.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"red\.txt can't be read as UTF-8"):
        list_source(media_folder)


def test_a_stray_caption_is_told_and_the_source_is_used(media_folder: Path) -> None:
    (media_folder / "sub" / "lonely.txt").write_text("no picture")
    listing = list_source(media_folder)
    assert len(listing.items) == 4 and listing.orphans == ("sub/lonely.txt",)


def test_an_unreadable_folder_is_a_named_error(media_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"sub can't be read: Permission denied"):
        list_source(media_folder)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"file": "media/red.png"', "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"file": "media/none.png"}', "line 2: there is no file"),
        ('{"path": "media/red.png"}', "line 2: unknown key 'path'"),
        ('{"file": "media/red.png", "captoin": "x"}', "the nearest known one is 'caption'"),
        ('{"caption": "x"}', "line 2: `file` must be a path"),
        ('{"file": "media/red.png", "caption": 3}', "line 2: `caption` must be a text"),
        ('{"file": "media/red.png", "weight": 0}', "line 2: `weight` must be above 0"),
        ('{"file": "media/red.png", "weight": NaN}', "line 2: `weight` must be above 0"),
        ('{"file": "media/red.png", "weight": 1' + "0" * 400 + "}", "line 2: `weight` must be above 0 and finite"),
        ('{"file": "media/red.png", "weight": 1' + "0" * 5000 + "}", "line 2 is not JSON"),
        ('{"file": "media/red.png", "frames": 1' + "0" * 400 + "}", "from 1 to 1000000000, it is 1000"),
        ('{"file": "media/red.png", "caption": "\\ud83d"}', "line 2 is not JSON: it holds half of a character"),
        ('{"file": "\\ud83d.png"}', "half of a character"),
        ('{"file": "media/red.png", "caption": ' + "[" * 100_000, "line 2 is not JSON: it is nested too deeply"),
        ('{"file": "media/red.png", "frames": 0}', "line 2: `frames` must be a whole number from 1"),
        ('{"file": "media/red.png", "start": -1}', "line 2: `start` must be a whole number from 0"),
        ('{"file": "media/red.png", "id": "../x"}', "line 2: '../x' can't be an id"),
        ('{"file": "media/red.png", "id": ""}', "line 2: '' can't be an id"),
        ('{"file": "media/short.mp4"}', "line 2: id 'media/short' is already that of line 1"),
    ],
)
def test_a_bad_line_of_a_manifest_is_named_by_its_number(media_folder: Path, line: str, reason: str) -> None:
    manifest = media_folder.parent / "list.jsonl"
    manifest.write_text('{"file": "media/short.mp4"}\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        list_source(manifest)
    assert reason in str(caught.value)


def test_an_empty_or_missing_manifest_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(DataError, match="is empty"):
        list_source(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="cannot read manifest"):
        list_source(tmp_path / "b.jsonl")
