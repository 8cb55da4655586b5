"""Media to a cache of latents: what is written, skipped, trimmed and refused."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zellige_ray.config import DataConfig
from zellige_ray.data import encode as encoding
from zellige_ray.data.cache import LatentCache, read_entry
from zellige_ray.data.dct import DctCodec
from zellige_ray.data.decoder import Decoder
from zellige_ray.data.encode import encode, prepare
from zellige_ray.data.media import read_frames, write_mp4, write_png
from zellige_ray.data.text import NgramEncoder
from zellige_ray.errors import DataError
from zellige_ray.models.specs import get_spec

WAN = get_spec("wan")


def changed(config: DataConfig, **values: Any) -> DataConfig:
    return config.model_copy(update=values)


def files(folder: str) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in Path(folder).rglob("*") if p.is_file()}


def test_a_folder_becomes_one_readable_file_per_sample(data_config: DataConfig) -> None:
    seen: list[tuple[str, int, int]] = []
    report, cache = encode(data_config, WAN, lambda *event: seen.append(event))
    index = cache.index()
    assert index.ids == ("red", "short", "sub/blue", "sub/long")
    assert [s.media for s in index.samples] == ["image", "video", "image", "video"]
    assert [s.latent_shape for s in index.samples] == [(16, 1, 6, 8), (16, 2, 6, 8), (16, 1, 6, 8), (16, 6, 4, 12)]
    assert [s.text_tokens for s in index.samples] == [4, 0, 0, 256]
    assert seen == [("encode", n, 4) for n in (0, 1, 2, 3, 4)]
    assert (report.written, report.skipped, report.images, report.videos) == (4, 0, 2, 2)
    assert [(t.id, t.had, t.used) for t in report.trimmed] == [("short", "7", 5), ("sub/long", "22", 21)]
    assert [(r.id, r.had, r.used, r.scaled) for r in report.resized] == [("sub/blue", "70x50", "64x48", False)]
    assert [(c.id, c.had, c.used) for c in report.cut_captions] == [("sub/long", 300, 256)]
    assert report.uncaptioned == ("sub/blue",)
    assert (report.tokens, report.min_tokens, report.max_tokens) == (12 + 24 + 12 + 72, 12, 72)
    assert json.loads(json.dumps(report.to_json()))["written"] == 4
    assert any("short: 7 -> 5 frames" in line for line in report.lines())


def test_latents_and_captions_are_those_of_the_codec_and_the_encoder(
    data_config: DataConfig, media_folder: Path
) -> None:
    cache = prepare(data_config, WAN)
    by_id = {sample.id: sample for sample in cache.index().samples}
    latents, text = cache.read(by_id["red"])
    assert latents.dtype == text.dtype == torch.float32
    expected = DctCodec().encode(read_frames(media_folder / "red.png"))
    assert np.abs(latents.numpy() - expected).max() < 3e-3  # float16 on the disk
    assert np.abs(text.numpy() - NgramEncoder(64, 256).encode("A red wave.")).max() < 2e-3
    assert cache.read(by_id["short"])[1].shape == (0, 64)
    long = cache.read(by_id["sub/long"])[0]
    assert (cache.read_frames(by_id["sub/long"], 2, 5) == long[:, 2:5]).all()
    assert cache.caption(by_id["red"]) == "A red wave."
    assert (cache.codec_name, cache.text_dim) == ("dct-4x8x8-16/1", 64)


def test_a_second_run_decodes_nothing_and_opens_no_latents(
    data_config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(data_config, WAN)
    before = files(data_config.cache)

    def fail(*_: object) -> None:
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(Decoder, "decode", fail)
    monkeypatch.setattr("zellige_ray.data.cache.read_entry", fail)
    monkeypatch.setattr(encoding, "read_entry", fail)
    report, second = encode(data_config, WAN)
    assert second.index() == first.index()
    assert files(data_config.cache) == before
    assert (report.written, report.skipped) == (0, 4)
    assert [t.id for t in report.trimmed] == ["short", "sub/long"]


def test_only_what_changed_is_encoded_again_and_old_files_stay_for_their_readers(
    data_config: DataConfig, media_folder: Path, make_clip: Callable[..., np.ndarray]
) -> None:
    first = prepare(data_config, WAN)
    write_png(media_folder / "red.png", make_clip(1, 64, 64)[0])
    (media_folder / "sub" / "blue.txt").write_text("now it has one")
    report, second = encode(data_config, WAN)
    assert report.written == 2
    assert {s.id: s.latent_shape[2:] for s in second.index().samples}["red"] == (8, 8)
    old = {sample.id: sample for sample in first.index().samples}
    assert first.read(old["red"])[0].shape == (16, 1, 6, 8)


def test_other_settings_never_reuse_a_latent(data_config: DataConfig) -> None:
    one = prepare(data_config, WAN)
    other = prepare(changed(data_config, max_frames=9), WAN)
    small = prepare(changed(data_config, max_pixels=32 * 48), WAN)
    text = prepare(changed(data_config, text=data_config.text.model_copy(update={"dim": 32})), WAN)
    assert len({one.folder, other.folder, small.folder, text.folder}) == 4
    assert {s.id: s.latent_shape for s in other.index().samples}["sub/long"] == (16, 3, 4, 12)
    assert all(s.latent_shape[2] * s.latent_shape[3] <= 32 * 48 // 64 for s in small.index().samples)


def test_an_encoding_that_was_stopped_goes_on_where_it_stood(
    data_config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = encoding.write_entry, []

    def stop_at_third(folder: Path, entry: Any, *tensors: Any) -> None:
        calls.append(entry.id)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(folder, entry, *tensors)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(encoding, "write_entry", stop_at_third)
        encode(data_config, WAN)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encode")]
    assert not list(Path(data_config.cache).rglob("*.part"))
    report, cache = encode(data_config, WAN)
    assert report.written + report.skipped == 4
    assert report.written >= 1 and report.skipped >= 2
    assert len(cache.index()) == 4


def test_too_many_corrupt_files_stop_the_decoders_at_once(
    data_config: DataConfig, media_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (media_folder / "bad.mp4").write_text("no clip")
    real = Decoder.decode

    def slow(self: Decoder, path: Path, *rest: Any) -> Any:
        if path.name != "bad.mp4":
            self._command = (sys.executable, "-c", "import time; time.sleep(60)")
        return real(self, path, *rest)

    monkeypatch.setattr(Decoder, "decode", slow)
    started = time.monotonic()
    with pytest.raises(DataError, match=r"above data\.max_corrupt 0\.1"):
        encode(data_config, WAN)
    assert time.monotonic() - started < 15
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encode")]


def test_corrupt_files_are_quarantined_with_a_reason_and_tried_once(
    data_config: DataConfig, media_folder: Path, fast_start_mp4: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (media_folder / "text.mp4").write_text("no clip")
    (media_folder / "cut.mp4").write_bytes(fast_start_mp4[: len(fast_start_mp4) // 3])
    lenient = changed(data_config, max_corrupt=0.5)
    report, cache = encode(lenient, WAN)
    assert len(cache.index()) == 4
    assert {Path(r.file).name: r.reason.split(":")[0] for r in report.quarantined}.keys() == {"text.mp4", "cut.mp4"}
    tried: list[str] = []
    real = Decoder.decode

    def note(self: Decoder, path: Path, *rest: Any) -> Any:
        tried.append(path.name)
        return real(self, path, *rest)

    monkeypatch.setattr(Decoder, "decode", note)
    again, _ = encode(lenient, WAN)
    assert tried == []
    assert again.quarantined == report.quarantined
    (media_folder / "cut.mp4").write_bytes(fast_start_mp4)
    mended, _ = encode(lenient, WAN)
    assert tried == ["cut.mp4"]
    assert [Path(r.file).name for r in mended.quarantined] == ["text.mp4"]


def test_more_corrupt_files_than_allowed_is_a_named_error(data_config: DataConfig, media_folder: Path) -> None:
    (media_folder / "bad.mp4").write_text("no clip")
    for _ in range(2):  # also when the quarantine is known
        with pytest.raises(DataError, match=r"1 of 5 files .*\(20%\), above data\.max_corrupt 0\.1"):
            encode(data_config, WAN)


def test_no_readable_file_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"")
    (tmp_path / "in" / "b.mp4").write_bytes(b"x" * 100)
    config = DataConfig(source=str(tmp_path / "in"), cache=str(tmp_path / "cache"), max_corrupt=1.0)
    with pytest.raises(DataError, match=r"no readable file in data source .*, 2 tried"):
        encode(config, WAN)
    assert not list(Path(config.cache).rglob("*.safetensors"))


def test_a_missing_or_empty_source_writes_nothing(tmp_path: Path) -> None:
    config = DataConfig(source=str(tmp_path / "none"), cache=str(tmp_path / "cache"))
    with pytest.raises(DataError, match="does not exist"):
        prepare(config, WAN)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="is empty"):
        prepare(config, WAN)
    assert not (tmp_path / "cache").exists()


def test_a_one_frame_clip_is_an_image_with_the_tokens_of_the_picture(
    tmp_path: Path, make_clip: Callable[..., np.ndarray]
) -> None:
    for frames in (1, 2, 3, 4, 5, 31):
        write_mp4(tmp_path / "in" / f"clip{frames:02}.mp4", make_clip(frames))
    write_png(tmp_path / "in" / "picture.png", make_clip(1)[0])
    cache = prepare(DataConfig(source=str(tmp_path / "in"), cache=str(tmp_path / "cache")), WAN)
    found = {s.id: (s.media, s.latent_shape[1], s.tokens()) for s in cache.index().samples}
    assert found["clip01"] == found["picture"] == ("image", 1, 12)
    assert [found[f"clip{n:02}"][1] for n in (2, 3, 4, 5, 31)] == [1, 1, 1, 2, 8]


def test_a_manifest_cut_is_exact_and_a_promise_it_breaks_is_named(
    tmp_path: Path, make_clip: Callable[..., np.ndarray]
) -> None:
    write_mp4(tmp_path / "a.mp4", make_clip(20))
    rows = [
        {"file": "a.mp4", "id": "cut", "start": 4, "frames": 9},
        {"file": "a.mp4", "id": "late", "start": 15, "frames": 9},
    ]
    (tmp_path / "list.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = DataConfig(source=str(tmp_path / "list.jsonl"), cache=str(tmp_path / "cache"), max_corrupt=0.5)
    report, cache = encode(config, WAN)
    assert [r.reason for r in report.quarantined] == ["it has 5 frames from 15, the manifest says 9"]
    latents, _ = cache.read(cache.index().samples[0])
    expected = DctCodec().encode(read_frames(tmp_path / "a.mp4", 4, 9))
    assert np.abs(latents.numpy() - expected).max() < 3e-3


def test_a_picture_smaller_than_a_token_is_refused_with_its_size(
    tmp_path: Path, make_clip: Callable[..., np.ndarray]
) -> None:
    write_png(tmp_path / "in" / "tiny.png", make_clip(1, 12, 300)[0])
    write_png(tmp_path / "in" / "fine.png", make_clip(1)[0])
    config = DataConfig(source=str(tmp_path / "in"), cache=str(tmp_path / "cache"), max_corrupt=0.5)
    report, _ = encode(config, WAN)
    assert [r.reason for r in report.quarantined] == ["too small: 300x12 leaves a side under 16 pixels"]


def test_a_cache_is_a_source_itself_and_a_foreign_one_is_refused(data_config: DataConfig, tmp_path: Path) -> None:
    cache = prepare(data_config, WAN)
    again = prepare(DataConfig(source=str(cache.folder), cache=str(tmp_path / "unused")), WAN)
    assert again.index() == cache.index()
    (cache.folder / "index.jsonl").unlink()
    assert LatentCache(cache.folder).index() == cache.index()
    settings = json.loads((cache.folder / "settings.json").read_text())
    (cache.folder / "settings.json").write_text(json.dumps({**settings, "latent_channels": 4}))
    with pytest.raises(DataError, match="latent_channels 4, model wan takes 16"):
        prepare(DataConfig(source=str(cache.folder)), WAN)


def test_a_torn_latent_file_is_named(data_config: DataConfig) -> None:
    cache = prepare(data_config, WAN)
    meta = cache.index().samples[0]
    path = cache.folder / meta.file
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match="cut off; delete it"):
        read_entry(cache.folder, meta.file)
    with pytest.raises(DataError, match=f"latents of sample '{meta.id}' can't be read"):
        cache.read(meta)
