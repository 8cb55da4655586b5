"""`zellige encode` and `zellige data`, as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from zellige_ray.cli import main
from zellige_ray.config import DataConfig
from zellige_ray.data.media import write_png


def test_encode_reports_and_a_second_call_skips(data_config: DataConfig, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"data.source={data_config.source}", f"data.cache={data_config.cache}", "data.max_pixels=null"]
    assert main(["encode", *words]) == 0
    out = capsys.readouterr().out
    assert "4 samples: 2 images, 2 videos; 4 encoded now" in out
    assert "sub/long: 22 -> 21 frames" in out
    assert main(["encode", *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["written"], answer["skipped"]) == (0, 4)
    assert main(["data", "index", answer["cache"]]) == 0
    assert answer["fingerprint"] in capsys.readouterr().out
    assert main(["data", "index", answer["cache"], "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["samples"]) == 4
    assert main(["encode", f"data.source={answer['cache']}"]) == 0
    assert "latent cache of 4 samples already" in capsys.readouterr().out


def test_index_describes_media_and_names_broken_files(media_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (media_folder / "bad.mp4").write_text("no clip")
    assert main(["data", "index", str(media_folder)]) == 0
    out = capsys.readouterr().out
    assert "4 samples: 2 images, 2 videos; 1 file can't be used, 2 without a caption, 0 other files ignored" in out
    assert "sub/long: 96x32, 22 frames, 300 words" in out
    assert "bad: it is not a picture or clip" in out


def test_index_counts_what_a_run_counts(data_config: DataConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """A cut that the clip does not have, a picture that is too small, a broken clip, a lonely caption."""
    folder = Path(data_config.source)
    (folder / "bad.mp4").write_text("no clip")
    write_png(folder / "tiny.png", np.zeros((8, 40, 3), dtype=np.uint8))
    (folder / "lonely.txt").write_text("no picture")
    assert main(["data", "index", str(folder)]) == 0
    index = capsys.readouterr().out
    words = [f"data.source={folder}", f"data.cache={data_config.cache}", "data.max_corrupt=0.5"]
    assert main(["encode", *words]) == 0
    encoded = capsys.readouterr().out
    for told in (index, encoded):
        assert told.strip().startswith("4 samples: 2 images, 2 videos; ")
    assert "2 files can't be used" in index
    assert "lonely.txt: a caption without a picture or clip of that name" in index
    assert "caption without media: lonely.txt" in encoded


@pytest.mark.parametrize("verb", [["encode"], ["data", "index"]])
def test_bad_sources_exit_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.mp4").write_text("no clip")
    for name, reason in (("none", "does not exist"), ("empty", "is empty"), ("broken", "no readable file")):
        source = str(tmp_path / name)
        words = [f"data.source={source}", f"data.cache={tmp_path / 'cache'}"] if verb == ["encode"] else [source]
        assert main([*verb, *words]) == 2
        error = capsys.readouterr().err
        assert reason in error and "Traceback" not in error
    assert not list(tmp_path.rglob("*.safetensors"))
