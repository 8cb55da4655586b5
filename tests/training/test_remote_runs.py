"""Runs, models and exports behind URLs: copied, fetched and refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import load_file

from tests.training.saved_run import write_run
from zellige_ray import urls
from zellige_ray.cli import main
from zellige_ray.config import ModelConfig
from zellige_ray.errors import CheckpointError, ModelError
from zellige_ray.models.architecture import model_folder, resolve
from zellige_ray.models.folders import WEIGHTS
from zellige_ray.training import checkpoint_files
from zellige_ray.training.remote_runs import copy_out, fetch_run

WAN = {"name": "wan", "layers": 1, "heads": 2, "head_dim": 16, "mlp_ratio": 2.0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with one checkpoint, of step 3."""
    write_run(tmp_path / "mine" / "run", WAN)
    (tmp_path / "mine" / "run" / "ledger.jsonl").write_text("{}\n")
    return tmp_path / "mine" / "run"


def copies(run: Path, steps: tuple[int, ...], url: str, keep: int) -> None:
    (first,) = (run / checkpoint_files.FOLDER).iterdir()
    for step in steps:
        path = first.with_name(f"step-{step:08d}")
        if not path.exists():
            shutil.copytree(first, path)
        copy_out(run, path, url, keep, ("ledger.jsonl", "config.yaml"))


def test_a_run_comes_back_with_its_ledger_and_its_newest_complete_checkpoint(run: Path, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/runs/run"
    copies(run, (3, 4, 5), url, keep=2)
    assert {name.split("/")[1] for name in urls.listing(url) if "/" in name} == {"step-00000004", "step-00000005"}
    urls.remove(urls.join(url, "checkpoints", "step-00000005", "complete.json"), first="none")
    found = fetch_run(url, tmp_path / "yours")
    assert found == tmp_path / "yours" / "run"
    assert (found / "ledger.jsonl").read_text() == "{}\n"
    assert [p.name for p in (found / checkpoint_files.FOLDER).iterdir()] == ["step-00000004"]
    assert checkpoint_files.find(str(found))[1].name == "step-00000004"
    with pytest.raises(CheckpointError, match=r"yours/run is here already: resume="):
        fetch_run(url, tmp_path / "yours")


def test_one_checkpoint_is_fetched_by_its_url(run: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store/run"
    copies(run, (3, 4), url, keep=5)
    found = fetch_run(f"{url}/checkpoints/step-00000003/", tmp_path / "yours")
    assert [p.name for p in (found / checkpoint_files.FOLDER).iterdir()] == ["step-00000003"]
    with pytest.raises(CheckpointError, match="step-00000009 is not there: the store has step-00000003, step-00000004"):
        fetch_run(f"{url}/checkpoints/step-00000009", tmp_path / "others")
    with pytest.raises(CheckpointError, match="a complete checkpoint is not there: the store has none"):
        fetch_run(f"file://{tmp_path}/store/other", tmp_path / "others")


def test_a_checkpoint_that_the_store_cut_off_leaves_no_folder(run: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store/run"
    copies(run, (3,), url, keep=1)
    part = next(p for p in (tmp_path / "store").rglob("*.distcp"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"step-00000003 of run, as the store gave it, is damaged: .* bytes"):
        fetch_run(url, tmp_path / "yours")
    assert not list((tmp_path / "yours").iterdir())


def test_an_export_to_a_url_is_a_model_to_begin_from(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZELLIGE_CACHE", str(tmp_path / "cache"))
    url = f"memory://{tmp_path.name}/exported"
    assert main(["export", str(run), "--to", url]) == 0
    assert f"in {url}" in capsys.readouterr().out
    assert main(["export", str(run), "--to", str(tmp_path / "here")]) == 0
    assert resolve(ModelConfig(name="wan", init_from=url)).layers == 1
    folder = model_folder(url)
    assert folder.parent == tmp_path / "cache" / "models"
    there, here = load_file(folder / WEIGHTS), load_file(tmp_path / "here" / WEIGHTS)
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in here)
    assert model_folder(url) == folder
    assert [p.name for p in (tmp_path / "cache" / "models").iterdir()] == [folder.name]
    capsys.readouterr()
    assert main(["export", str(run), "--to", url]) == 2
    assert "the folder behind --to is not empty" in capsys.readouterr().err
    assert main(["export", str(run), "--to", "s4://x"]) == 2
    assert "--to begins with s4://, which fsspec has no driver for" in capsys.readouterr().err


def test_a_store_that_refuses_is_named_and_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZELLIGE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelError, match="nothing lies below it"):
        model_folder(f"memory://{tmp_path.name}/nothing")

    def refuse(*args: object, **more: object) -> None:
        raise RuntimeError("quota exceeded")

    monkeypatch.setattr(MemoryFileSystem, "put_file", refuse)
    assert main(["export", str(run), "--to", f"memory://{tmp_path.name}/full"]) == 2
    assert "memory:// answered RuntimeError: quota exceeded" in capsys.readouterr().err
