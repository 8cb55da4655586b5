"""`zellige plan CONFIG`: answers on the config's own data set, from headers; what can't be used, what never fits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.actors.tiny_data import write_cache
from zellige_ray.commands import plan_config
from zellige_ray.config import parse_config
from zellige_ray.data.encode import encode
from zellige_ray.data.media import write_mp4, write_png
from zellige_ray.errors import ConfigError, DataError
from zellige_ray.models.specs import get_spec


def write_media(folder: Path) -> None:
    """Three pictures, two clips, one that is too small and one that is no picture."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i, (h, w) in enumerate([(64, 48), (100, 70), (32, 32)]):
        write_png(folder / f"picture-{i}.png", rng.integers(0, 255, (h, w, 3), dtype=np.uint8))
        (folder / f"picture-{i}.txt").write_text("some words of a caption")
    for i, (n, h, w) in enumerate([(11, 64, 64), (6, 48, 80)]):
        write_mp4(folder / f"clip-{i}.mp4", rng.integers(0, 255, (n, h, w, 3), dtype=np.uint8))
    write_png(folder / "tiny.png", rng.integers(0, 255, (8, 40, 3), dtype=np.uint8))
    (folder / "broken.jpg").write_bytes(b"no picture")


def settings(source: Path, **changes: Any) -> dict[str, Any]:
    return {
        "steps": 100, "data": {"source": str(source), "held_out": 1, "max_corrupt": 0.5}, "batch": {"tokens": 60},
        "model": {"name": "dit", "layers": 2, "heads": 2, "head_dim": 12}, "placement": {"hardware": "cpu"}, **changes,
    }  # fmt: skip


def answers(source: Path, hardware: str | None = None, batches: int = 8, **changes: Any) -> plan_config.Answers:
    return plan_config.answer(parse_config(settings(source, **changes)), "run.yaml", hardware, None, batches)


def test_a_folder_is_answered_for_from_its_headers_and_every_sample_is_accounted_for(tmp_path: Path) -> None:
    write_media(tmp_path / "media")
    found = answers(tmp_path / "media")
    assert (found.samples, found.images, found.videos, found.held_out) == (5, 3, 2, 1)
    assert {Path(name).name for name, _ in found.refused} == {"tiny.png", "broken.jpg"}
    assert "too small" in dict((Path(n).name, r) for n, r in found.refused)["tiny.png"]
    assert found.never_drawn == ()
    assert found.to_json()["dropped"] == 0
    assert found.steps_per_pass >= 2
    assert found.step_s is not None and found.step_s > 0
    assert found.run_s == pytest.approx(found.step_s * 100)
    assert found.idle is not None and 0 <= found.idle < 1
    assert not (tmp_path / "data").exists()


def test_the_survey_knows_the_shapes_that_the_encoding_makes(tmp_path: Path) -> None:
    from zellige_ray.data.survey import survey

    write_media(tmp_path / "media")
    config = parse_config(settings(tmp_path / "media")).data.model_copy(
        update={"cache": str(tmp_path / "cache"), "max_pixels": 4000, "max_frames": 9}
    )
    spec = get_spec("dit")
    _, cache = encode(config, spec)
    real = {s.id: (s.media, s.latent_shape) for s in cache.index().samples}
    assert {s.id: (s.media, s.latent_shape) for s in survey(config, spec).index.samples} == real


def test_a_latent_cache_is_answered_for_as_it_is(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "cache")
    found = answers(cache.folder)
    assert found.samples == 12
    assert found.longest_tokens == 90
    assert found.refused == ()


def test_memory_falls_with_the_degree_and_the_gpus_needed_are_the_least_that_fit(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "cache")
    first, small = answers(cache.folder), tmp_path / "small.yaml"
    memory = first.state_bytes + (first.degrees[0].bytes - first.state_bytes) // 2
    preset = {
        "name": "small", "nodes": 1, "ranks_per_node": 4, "memory_bytes": memory, "linear_flops": 1e9,
        "attention_flops": 1e9, "intra_node_bytes_per_s": 1e8, "inter_node_bytes_per_s": 1e8,
        "message_latency_s": 1e-4, "state": "fsdp",
    }  # fmt: skip
    small.write_text(yaml.safe_dump(preset))
    found = answers(cache.folder, hardware=str(small))
    sizes = [d.bytes for d in found.degrees]
    assert sizes == sorted(sizes, reverse=True)
    assert found.ranks_needed is not None and found.ranks_needed > 1
    least = next(d for d in found.degrees if d.degree >= found.ranks_needed)
    assert least.fits
    assert all(d.fits == (d.degree >= found.ranks_needed) for d in found.degrees)
    small.write_text(yaml.safe_dump(preset | {"memory_bytes": 10_000}))
    none = answers(cache.folder, hardware=str(small))
    assert none.ranks_needed is None
    assert none.fault is not None and "parameters, gradients and optimizer" in none.fault
    assert any("no number of such GPUs is enough" in line for line in plan_config.lines(none))


def test_the_state_is_counted_as_the_layout_of_the_run_holds_it(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "cache")
    found = {n: answers(cache.folder, hardware="a800-16", state={"layout": n}) for n in ("replicated", "hsdp", "fsdp")}
    whole, inside, over_all = (found[n].state_bytes for n in ("replicated", "hsdp", "fsdp"))
    assert over_all < inside < whole / 4  # 2 nodes of 8
    assert [d.bytes for d in found["fsdp"].degrees] < [d.bytes for d in found["replicated"].degrees]
    assert any(
        "GiB are parameters, gradients and optimizer, a part on each rank of a node" in line
        for line in plan_config.lines(found["hsdp"])
    )


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "cache")
    with pytest.raises(ConfigError, match="which hardware"):
        answers(cache.folder, placement={})
    with pytest.raises(DataError, match="does not exist"):
        answers(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="--batches is 0"):
        plan_config.run([], None, None, 0, False)


def test_options_of_a_batch_and_of_a_config_are_not_mixed(tmp_path: Path, capsys: Any) -> None:
    from zellige_ray.cli import main

    for words, message in (
        (["plan", "run.yaml", "--batch", "b.jsonl"], "--batch can't be given with a run config"),
        (["plan", "--batch", "b.jsonl"], "--hardware, --model missing"),
        (["plan"], "--batch, --hardware, --model missing"),
        (["plan", "--batch", "b", "--hardware", "cpu", "--model", "flux", "--batches", "2"], "goes with a run config"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


def test_the_command_answers_in_text_and_json_without_torch_or_ray(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "cache")
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings(cache.folder)))
    code = (
        "import sys; from zellige_ray.cli import main;"
        f"code = main(['plan', {str(path)!r}, 'batch.tokens=90', '--batches', '4', *sys.argv[1:]]);"
        "assert not {'torch', 'ray', 'diffusers'} & set(sys.modules), sorted(sys.modules); sys.exit(code)"
    )
    for flags in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *flags], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        if flags:
            assert json.loads(done.stdout)["dropped"] == 0
        else:
            for words in ("longest sequence", "memory per rank", "GPUs needed", "waste", "dropped samples: 0"):
                assert words in done.stdout
