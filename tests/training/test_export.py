"""`zellige export`: plain diffusers opens what it writes and answers as the trained model; or it writes nothing."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch

from tests.models.conftest import make_batch
from tests.models.test_families import plain
from tests.training.saved_run import TEXT_DIM, write_run
from zellige_ray import cli, urls
from zellige_ray.config import load_config
from zellige_ray.models import get_adapter, get_spec
from zellige_ray.models.architecture import origins
from zellige_ray.training import checkpoint_files
from zellige_ray.training.saved import SavedWeights
from zellige_ray.training.state import TrainState

WAN = {"name": "wan", "layers": 2, "heads": 2, "head_dim": 16, "mlp_ratio": 2.0}
CLASSES = {name: origin.class_name for name, origin in origins.items()}


def answer(name: str, module: Any, seed: int = 0) -> torch.Tensor:
    """What diffusers' own forward says of one sequence."""
    spec = get_spec(name)
    (b,) = make_batch(spec, [(1, 2, 4)], [5], torch.float32, seed)
    with torch.no_grad():
        if name == "wan":
            out = module(b.latents[None], b.time[None] * 1000, b.text[None], return_dict=False)[0]
            return get_adapter("wan").tokens(out[0], 0, 8)
        return plain(name, module, b)


def load(folder: Path, name: str) -> Any:
    return getattr(diffusers, CLASSES[name]).from_pretrained(folder)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def export(*words: object) -> int:
    return cli.main(["export", *map(str, words)])


@pytest.fixture
def wan_run(tmp_path: Path) -> SimpleNamespace:
    state = write_run(tmp_path / "run", WAN)
    return SimpleNamespace(folder=tmp_path / "run", state=state)


@pytest.mark.parametrize("name", ["wan", "flux", "hunyuan", "sd3", "qwen"])
def test_plain_diffusers_loads_an_export_and_answers_as_the_trained_model(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = write_run(tmp_path / "run", {"name": name, "layers": 2, "heads": 2, "head_dim": 16})
    assert export(tmp_path / "run", "--to", tmp_path / "raw", "--raw") == 0
    assert export(tmp_path / "run", "--to", tmp_path / "ema") == 0
    said = capsys.readouterr().out
    assert f"{CLASSES[name]} of step 3: raw weights" in said
    assert f"{CLASSES[name]} of step 3: EMA weights" in said
    raw, ema = answer(name, load(tmp_path / "raw", name)), answer(name, load(tmp_path / "ema", name))
    assert difference(raw, answer(name, state.module)) <= 1e-6
    state.swap_ema()
    assert difference(ema, answer(name, state.module)) <= 1e-6
    assert difference(ema, raw) > 1e-3, "an average that is the weights themselves proves nothing"


def test_without_an_average_the_weights_are_written_and_asking_for_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", WAN, ema_decay=0.0)
    assert export(tmp_path / "run", "--to", tmp_path / "out") == 0
    assert "raw weights" in capsys.readouterr().out
    assert export(tmp_path / "run", "--to", tmp_path / "other", "--ema") == 2
    assert "holds no EMA (optimizer.ema_decay was 0)" in capsys.readouterr().err


def test_small_shards_get_an_index_and_load_again_and_a_type_is_cast(
    wan_run: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "out"
    assert export(wan_run.folder, "--to", to, "--shard-size", "50KB", "--dtype", "bfloat16", "--raw", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["dtype"] == "bfloat16" and said["step"] == 3
    assert "diffusion_pytorch_model.safetensors.index.json" in said["files"] and len(said["files"]) > 3
    assert sum((to / name).stat().st_size for name in said["files"]) == said["num_bytes"]
    loaded = load(to, "wan")
    trained = dict(wan_run.state.module.named_parameters())
    assert all(torch.equal(p.float(), trained[n].to(torch.bfloat16).float()) for n, p in loaded.named_parameters())


def test_the_reference_dit_is_written_as_safetensors_with_a_config_of_ours(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    state = write_run(tmp_path / "run", {"name": "dit", "layers": 2, "heads": 2, "head_dim": 12})
    assert export(tmp_path / "run", "--to", tmp_path / "out", "--raw") == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["_class_name"] == "zellige.dit"
    assert (config["layers"], config["text_dim"]) == (2, TEXT_DIM)
    written = load_file(tmp_path / "out" / "diffusion_pytorch_model.safetensors")
    assert written.keys() == state.module.state_dict().keys()
    assert all(torch.equal(written[n], t) for n, t in state.module.state_dict().items())


def test_an_older_checkpoint_is_chosen_by_its_step_and_a_wrong_one_names_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    early = write_run(run, WAN, steps=2)
    write_run(run, WAN, steps=4)
    assert export(run, "--to", tmp_path / "out", "--checkpoint", 2, "--raw") == 0
    loaded = load(tmp_path / "out", "wan")
    assert all(torch.equal(p, dict(early.module.named_parameters())[n]) for n, p in loaded.named_parameters())
    assert export(run, "--to", tmp_path / "other", "--checkpoint", 3) == 2
    assert "no complete checkpoint of step 3; there are 2, 4" in capsys.readouterr().err


def test_a_target_that_is_not_empty_or_a_file_is_refused_and_left_alone(
    wan_run: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    file.write_text("mine")
    empty.mkdir()
    for target, message in ((full, "is not empty"), (file, "is a file")):
        assert export(wan_run.folder, "--to", target) == 2
        assert message in capsys.readouterr().err
    assert [p.name for p in full.iterdir()] == ["mine.txt"]
    assert export(wan_run.folder, "--to", empty) == 0
    assert (empty / "config.json").is_file()


LORA = {"rank": 2, "alpha": 3.0, "targets": ["to_q", "to_out.0", "blocks.*.ffn.net.2", "*norm1.linear"]}


@pytest.mark.parametrize("name", ["wan", "flux", "qwen"])
def test_adapters_load_into_plain_diffusers_and_merged_ones_answer_the_same(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"name": name, "layers": 2, "heads": 2, "head_dim": 16}
    lora = LORA | {"targets": ["to_q", "to_out.0", "*ffn.net.2" if name == "wan" else "*.to_v"]}
    write_run(tmp_path / "base-run", sizes)
    assert export(tmp_path / "base-run", "--to", tmp_path / "base", "--raw") == 0
    model = {"init_from": str(tmp_path / "base"), "lora": lora}
    state = write_run(tmp_path / "run", model)
    checkpoint = checkpoint_files.newest(tmp_path / "run")
    assert len(SavedWeights(checkpoint).names("model")) == len(state.pieces)  # type: ignore[arg-type]
    state.swap_ema()
    trained = answer(name, state.module)
    assert export(tmp_path / "run", "--to", tmp_path / "adapters", "--lora") == 0
    assert f"adapters of a {CLASSES[name]} of step 3: EMA weights" in capsys.readouterr().out
    assert [p.name for p in (tmp_path / "adapters").iterdir()] == ["pytorch_lora_weights.safetensors"]
    module = load(tmp_path / "base", name)
    without = answer(name, module)
    module.load_lora_adapter(tmp_path / "adapters", use_safetensors=True)
    assert difference(answer(name, module), trained) <= 1e-6
    assert difference(without, trained) > 1e-3, "adapters that change nothing prove nothing"
    assert export(tmp_path / "run", "--to", tmp_path / "merged") == 0
    assert difference(answer(name, load(tmp_path / "merged", name)), trained) <= 2e-6


def test_a_pipeline_loads_the_adapters_too(tmp_path: Path) -> None:
    write_run(tmp_path / "run", WAN | {"lora": LORA | {"targets": ["to_q"]}})
    assert export(tmp_path / "run", "--to", tmp_path / "adapters", "--lora", "--raw") == 0
    state, metadata = diffusers.WanPipeline.lora_state_dict(tmp_path / "adapters", return_lora_metadata=True)
    assert len(state) == 8 and all(key.startswith("transformer.blocks.") for key in state)
    assert (metadata["transformer.r"], metadata["transformer.lora_alpha"]) == (2, 3)


def test_adapters_of_another_base_or_of_none_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", WAN | {"lora": LORA | {"targets": ["to_q"]}})
    marker = checkpoint_files.newest(tmp_path / "run") / checkpoint_files.MARKER  # type: ignore[operator]
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"seed": 5}))
    assert export(tmp_path / "run", "--to", tmp_path / "out") == 2
    assert "were trained beside other weights (fingerprint" in capsys.readouterr().err
    write_run(tmp_path / "whole", WAN)
    assert export(tmp_path / "whole", "--to", tmp_path / "out", "--lora") == 2
    assert "did not train adapters (model.lora)" in capsys.readouterr().err
    write_run(tmp_path / "dit", {"name": "dit", "layers": 1, "heads": 2, "head_dim": 12, "lora": {"targets": ["qkv"]}})
    assert export(tmp_path / "dit", "--to", tmp_path / "out", "--lora") == 2
    assert "diffusers loads no adapters into a ReferenceDiT" in capsys.readouterr().err
    assert export(tmp_path / "dit", "--to", tmp_path / "out") == 0
    assert export(tmp_path / "run", "--to", tmp_path / "other", "--lora", "--shard-size", "1MB") == 2
    assert "--lora writes one file, --shard-size 1MB would be ignored" in capsys.readouterr().err


def edit_marker(run: Path, **changes: Any) -> None:
    marker = checkpoint_files.newest(run) / checkpoint_files.MARKER  # type: ignore[operator]
    value = json.loads(marker.read_text())
    value["model"] |= changes
    marker.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 3}, "blocks.2.attn1.norm_k.weight is missing"),
        ({"layers": 1}, "blocks.1.attn1.norm_k.weight is unexpected"),
        ({"heads": 3}, "is [32] there, [48] in the model"),
        ({"name": "flux", "mlp_ratio": 4.0}, "is not a checkpoint of a flux as it says"),
        ({"layers": "many"}, "does not describe a model"),
    ],
)
def test_a_checkpoint_of_another_architecture_names_what_differs(
    wan_run: SimpleNamespace, tmp_path: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_marker(wan_run.folder, **changes)
    assert export(wan_run.folder, "--to", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_with_missing_tensors_names_them(
    wan_run: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch.distributed.checkpoint as dcp

    folder = checkpoint_files.newest(wan_run.folder)
    state: TrainState = wan_run.state
    values = state.state_dict()
    del values["model"]["proj_out.weight"]
    for file in (*folder.glob("*.distcp"), folder / checkpoint_files.TENSORS):  # type: ignore[union-attr,operator]
        file.unlink()
    dcp.save(values, storage_writer=dcp.FileSystemWriter(str(folder)), no_dist=True)
    position = checkpoint_files.read_position(folder)  # type: ignore[arg-type]
    (folder / checkpoint_files.MARKER).unlink()  # type: ignore[operator]
    partial = folder.rename(checkpoint_files.partial_name(wan_run.folder, position.step))  # type: ignore[union-attr]
    checkpoint_files.seal(partial, position)
    assert export(wan_run.folder, "--to", tmp_path / "out") == 2
    assert "proj_out.weight is missing" in capsys.readouterr().err


def test_nothing_is_exported_from_a_run_without_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(tmp_path, "--to", tmp_path / "out") == 2
    assert "no complete checkpoint in" in capsys.readouterr().err


def test_a_file_that_can_not_be_written_whole_leaves_no_folder_behind(
    wan_run: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        code = export(wan_run.folder, "--to", tmp_path / "to" / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert code == 2
    assert "File too large" in said and "MB are free there" in said
    assert list((tmp_path / "to").iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_full_is_named_and_leaves_no_folder_behind(
    wan_run: SimpleNamespace, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(wan_run.folder, "--to", small_disk / "out") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list(small_disk.iterdir()) == []


def test_the_commands_of_the_document_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports are made, training is configured; every `zellige` line of docs/training.md is one of both."""
    text = (Path(__file__).parent.parent.parent / "docs" / "training.md").read_text()
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))
    blocks = blocks.replace("s3://bucket", f"file://{tmp_path}/store")
    commands = [shlex.split(line, comments=True)[1:] for line in blocks.splitlines() if line.startswith("zellige")]
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "whole", WAN, steps=50)
    write_run(tmp_path / "runs" / "adapted", WAN | {"lora": {"rank": 2}})
    Path("my.yaml").write_text("data: {source: mini}\nbatch: {samples: 2}\n")
    for verb, *words in commands:
        if verb == "train":
            load_config(words[0], words[1:])
            continue
        assert verb == "export" and words[0] == "runs/latest"
        run = "adapted" if words[2] in ("adapters", "merged") else "whole"
        assert export(f"runs/{run}", *words[1:]) == 0, words
        assert urls.listing(words[2])
    assert {verb for verb, *_ in commands} == {"train", "export"}
