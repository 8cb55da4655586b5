"""Beginning from a folder: its sizes are taken, its weights are compared by headers, and what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.saved_run import TEXT_DIM, write_run
from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models import get_adapter, specs
from zellige_ray.models.architecture import origins, resolve
from zellige_ray.models.folders import WEIGHTS, check_weights
from zellige_ray.models.making import check_model, outline
from zellige_ray.training.export import export_model

WAN = {"name": "wan", "layers": 2, "heads": 2, "head_dim": 16, "mlp_ratio": 2.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Wan with a width that no model.mlp_ratio has by default."""
    here = tmp_path_factory.mktemp("wan")
    write_run(here / "run", WAN)
    export_model(str(here / "run"), str(here / "out"), weights="raw")
    return here / "out"


@pytest.fixture
def broken(folder: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def edit(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


@pytest.mark.parametrize("name", sorted(origins))
def test_sizes_of_every_family_come_from_its_own_config(name: str) -> None:
    ratio = {"flux2": 3.0, "sana": 2.5, "hunyuan": 2.0, "wan": 2.5}.get(name, 4.0)
    given = ModelConfig(name=name, layers=3, heads=2, head_dim=16, mlp_ratio=ratio)
    made: Any = outline(given, TEXT_DIM)
    architecture = {**made.config, "_class_name": type(made).__name__}
    found = resolve(ModelConfig(architecture=architecture))
    assert (found.name, found.layers, found.heads, found.head_dim) == (name, 3, 2, 16)
    assert found.mlp_ratio == ratio
    again = outline(found, TEXT_DIM)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in made.state_dict().items()}
    assert resolve(found) == found, "a resolved configuration resolves to itself"


def test_every_diffusers_family_can_be_begun_from() -> None:
    assert origins.keys() == specs.specs.keys() - {"dit"}


def test_weights_are_those_of_the_folder_and_the_seed_does_not_matter(folder: Path) -> None:
    config = resolve(ModelConfig(init_from=str(folder)))
    assert (config.name, config.layers, config.heads, config.mlp_ratio) == ("wan", 2, 2, 2.0)
    module = get_adapter("wan").build(config, TEXT_DIM, 9, torch.float32, "cpu")
    there = load_file(folder / WEIGHTS)
    assert all(torch.equal(there[name], tensor) for name, tensor in module.state_dict().items())


def test_a_pipeline_stands_for_its_transformer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "transformer").symlink_to(folder)
    (tmp_path / "model_index.json").write_text("{}")
    assert resolve(ModelConfig(init_from=str(tmp_path))).layers == 2
    assert resolve(ModelConfig(init_from=str(tmp_path / "transformer"))).layers == 2


def test_an_export_of_the_reference_dit_can_be_begun_from(tmp_path: Path) -> None:
    state = write_run(tmp_path / "run", {"name": "dit", "layers": 1, "heads": 3, "head_dim": 12})
    export_model(str(tmp_path / "run"), str(tmp_path / "out"), weights="raw")
    config = resolve(ModelConfig(init_from=str(tmp_path / "out")))
    assert (config.name, config.layers, config.heads, config.head_dim) == ("dit", 1, 3, 12)
    check_model(config, TEXT_DIM)
    module = get_adapter("dit").build(config, TEXT_DIM, 9, torch.float32, "cpu")
    wanted = state.module.state_dict()
    assert all(torch.equal(wanted[name], tensor) for name, tensor in module.state_dict().items())
    with pytest.raises(ModelError, match=r"captions are 8 wide \(data.text\).* takes 24"):
        check_model(config, 8)


def test_what_contradicts_the_folder_is_named_and_what_agrees_is_not(folder: Path) -> None:
    def given(**changes: Any) -> ModelConfig:
        return resolve(ModelConfig(init_from=str(folder), **changes))

    assert given(layers=2, heads=2, name="wan").layers == 2
    with pytest.raises(ModelError, match=r"model.layers is 6, model.init_from .* has 2; model.heads is 4, .* has 2"):
        given(layers=6, heads=4)
    with pytest.raises(ModelError, match=r"model.name is flux, .* is a WanTransformer3DModel, which is model.name wan"):
        given(name="flux")
    with pytest.raises(ModelError, match=r"model.architecture is not the config.json of model.init_from"):
        given(architecture={"_class_name": "WanTransformer3DModel", "num_layers": 9})
    with pytest.raises(ModelError, match=r"captions are 8 wide \(data.text\).* takes 24"):
        check_model(given(), 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_class_name": "UNet2DConditionModel"}, r"is a UNet2DConditionModel; the classes that can be trained are Co"),
        ({"_class_name": None}, "does not name the class of a model"),
        ({"num_layers": None}, "num_layers is None, a number is needed"),
        ({"in_channels": 36}, "takes 36 channels, wan is trained with 16"),
        ({"patch_size": [2, 2, 2]}, r"patches of \[2, 2, 2\], wan is packed in patches of \[1, 2, 2\]"),
    ],
)
def test_a_folder_of_something_else_is_named(broken: Path, changes: dict[str, Any], message: str) -> None:
    edit(broken / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        resolve(ModelConfig(init_from=str(broken)))


def test_a_folder_without_a_model_is_named(broken: Path) -> None:
    with pytest.raises(ModelError, match="there is no model in nowhere"):
        resolve(ModelConfig(init_from="nowhere"))
    (broken / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot read .*config.json"):
        resolve(ModelConfig(init_from=str(broken)))


def test_missing_unexpected_and_misshapen_weights_are_named_by_headers_alone(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve(ModelConfig(init_from=str(broken)))
    tensors = load_file(broken / WEIGHTS)
    tensors["extra.weight"] = tensors.pop("proj_out.bias")
    tensors["blocks.0.attn1.to_q.bias"] = torch.zeros(7)
    save_file(tensors, broken / WEIGHTS)
    monkeypatch.setattr("zellige_ray.models.folders._tensors", None)
    with pytest.raises(ModelError) as caught:
        check_model(config, TEXT_DIM)
    said = str(caught.value)
    assert "proj_out.bias is missing" in said
    assert "extra.weight is unexpected" in said
    assert "blocks.0.attn1.to_q.bias [7] for [32] has another shape" in said


def test_weights_that_are_cut_off_pickled_or_not_all_there_are_named(broken: Path) -> None:
    module = outline(resolve(ModelConfig(init_from=str(broken))), TEXT_DIM)
    whole = (broken / WEIGHTS).read_bytes()
    (broken / WEIGHTS).write_bytes(whole[:100])
    with pytest.raises(ModelError, match=f"cannot read .*{WEIGHTS}"):
        check_weights(broken, module)
    (broken / WEIGHTS).unlink()
    (broken / "diffusion_pytorch_model.bin").touch()
    with pytest.raises(ModelError, match=r"has no diffusion_pytorch_model.safetensors \(pickles such as"):
        check_weights(broken, module)
    (broken / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"a": "part-1.safetensors"}}))
    with pytest.raises(ModelError, match=r"has no part-1.safetensors"):
        check_weights(broken, module)
