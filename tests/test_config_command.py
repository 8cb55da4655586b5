"""`zellige config`: what a run would use, and the reference of all keys, which is the one in the documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from zellige_ray import cli
from zellige_ray.commands.config import markdown
from zellige_ray.config import RunConfig, load_config
from zellige_ray.configs import configs

REFERENCE = Path(__file__).parent.parent / "docs" / "configuration.md"


def keys_of(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str | None]]:
    """Every key that holds a value, by its path, with its description."""
    for key, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys_of(field.annotation, f"{path}{key}.")
        else:
            yield f"{path}{key}", field.description


def test_the_reference_is_up_to_date() -> None:
    assert REFERENCE.read_text() == markdown(), "run: python -m zellige_ray config --markdown > docs/configuration.md"


@pytest.mark.parametrize(("key", "description"), list(keys_of(RunConfig)))
def test_every_key_is_described_and_in_the_reference(key: str, description: str | None) -> None:
    assert description and description.endswith(".")
    assert f"| `{key}` | " in markdown()


def test_shown_config_is_the_one_that_a_run_would_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "optimizer.lr=3e-4"]) == 0
    (tmp_path / "shown.yaml").write_text(capsys.readouterr().out)
    assert load_config(tmp_path / "shown.yaml") == load_config(configs["mini"], ["optimizer.lr=3e-4"])
    assert cli.main(["config", "optimizer.lr=3e-4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["optimizer"]["lr"] == 3e-4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optimizer.lrr=1"], "the nearest known one is lr"),
        (["steps=ten"], "steps: expected a valid integer, got 'ten'"),
        (["batch.samples=4"], "batch.tokens is 5000 and batch.samples is 4"),
        (["--markdown", "mini"], "leave one of them out"),
        (["model.name=wam"], "the nearest known one is 'wan'"),
        (["placement.policy=zelige"], "nearest is 'zellige'"),
        (["placement.hardware=h200-88"], "the nearest is 'h200-8'"),
        (["resume=nowhere"], "no complete checkpoint in"),
        (["engine.kernel=flash", "engine.dtype=bfloat16"], "flash-attn is not installed here"),
    ],
)
def test_bad_input_is_named_with_exit_code_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", *words]) == 2
    assert said in capsys.readouterr().err
