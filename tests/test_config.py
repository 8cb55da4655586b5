"""The configuration: what is accepted, and that each mistake is named with path, expected and got."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from zellige_ray.config import RunConfig, dump_config, load_config, parse_config
from zellige_ray.configs import configs
from zellige_ray.errors import ConfigError

MINI = configs["mini"]


@pytest.mark.parametrize("name", configs)
def test_every_packaged_config_is_valid(name: str) -> None:
    assert load_config(configs[name]).steps > 0


def test_smallest_config_has_a_default_for_the_rest() -> None:
    config = parse_config({"data": {"source": "folder"}, "batch": {"samples": 4}})
    assert config.model.name == "wan"
    assert config.batch.tokens is None


def test_dumped_config_reads_back_equal(tmp_path: Path) -> None:
    config = load_config(MINI, ["optimizer.lr=3e-4", "preview.every=null", "optimizer.betas=[0.8, 0.9]"])
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config


def test_config_is_frozen_and_comparable() -> None:
    one, two = load_config(MINI), load_config(MINI)
    assert one == two
    with pytest.raises(ValueError, match="frozen"):
        one.steps = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("2E+1", 20.0), ("0.5", 0.5), ("3", 3.0), ("1.5e-4", 1.5e-4)]
)
def test_numbers_read_as_people_write_them(text: str, value: float) -> None:
    assert load_config(MINI, [f"optimizer.lr={text}"]).optimizer.lr == value


def test_overrides_reach_into_sections_that_the_file_leaves_out() -> None:
    config = load_config(MINI, ["loss.shift=3.0", "workers.count=2", "seed=7"])
    assert (config.loss.shift, config.workers.count, config.seed) == (3.0, 2, 7)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stepz=3", "stepz: unknown key, the nearest known one is steps"),
        ("model.layer=3", "model.layer: unknown key, the nearest known one is layers"),
        ("data.codec.pth=x", "data.codec.pth: unknown key, the nearest known one is path"),
        ("steps=many", "steps: expected a valid integer, got 'many'"),
        ("steps=true", "steps: expected a valid integer, got True"),
        ("steps=1.5", "steps: expected a valid integer, got 1.5"),
        ("steps=0", "steps: expected greater than 0, got 0"),
        ("seed='1'", "seed: expected a valid integer, got '1'"),
        ("workers.count=two", "workers.count: expected a valid integer or 'auto', got 'two'"),
        ("workers.count=0", "workers.count: expected greater than 0 or 'auto', got 0"),
        ("optimizer.lr=.nan", "optimizer.lr: expected a finite number, got nan"),
        ("optimizer.lr=.inf", "optimizer.lr: expected a finite number, got inf"),
        ("optimizer.betas=[0.9, 1.5]", "optimizer.betas.1: expected less than 1, got 1.5"),
        ("data.codec.name=vea", "data.codec.name: expected 'dct' or 'vae', got 'vea'"),
        ("data.source=3", "data.source: expected a valid string, got 3"),
        ("data=3", "data: expected a section with keys, got 3"),
        ("data.held_out=-1", "data.held_out: expected greater than or equal to 0, got -1"),
        ("model.head_dim=13", "model.head_dim: expected a multiple of 2, got 13"),
        ("model.name.x=1", "override model.name.x: name is not a section"),
        ("name=a b", "name: expected pattern"),
        ("=3", "override '=3' is not of the form key=value"),
        ("steps=[1", "override 'steps=[1': the value is not YAML"),
    ],
)
def test_mistake_is_named_with_path_expected_and_got(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as fault:
        load_config(MINI, [override])
    assert said in str(fault.value)


@pytest.mark.parametrize(
    ("overrides", "both"),
    [
        (["batch.samples=4"], ("batch.tokens is", "batch.samples is 4")),
        (["batch.tokens=null"], ("batch.tokens is None", "batch.samples is None")),
        (["workers.min=9", "workers.count=2"], ("workers.min is 9", "workers.count 2")),
        (["workers.ping_timeout_s=100.0"], ("ping_timeout_s 100", "comm_timeout_s 60")),
        (["data.codec.name=vae"], ("data.codec.name is vae", "data.codec.path")),
        (["data.codec.path=x"], ("data.codec.path is 'x'", "data.codec.name dct")),
        (["data.text.name=transformers"], ("data.text.name is transformers", "data.text.path")),
        (["engine.kernel=flash"], ("engine.kernel flash", "engine.dtype is float32")),
    ],
)
def test_contradiction_names_both_settings(overrides: list[str], both: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as fault:
        load_config(MINI, overrides)
    assert all(name in str(fault.value) for name in both), str(fault.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as fault:
        load_config(MINI, ["stepz=3", "model.layers=0", "data.codec.name=vea"])
    assert len(str(fault.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "must be a mapping of keys, it is list"),
        ("", "must be a mapping of keys, it is NoneType"),
        ("a: [", "cannot read config"),
        ("steps: 3\nsteps: 4\n", "the key 'steps' is given twice"),
        ("data:\n  source: a\n  source: b\n", "the key 'source' is given twice"),
        ("data:\nbatch: {samples: 3}\n", "data: expected a section with keys, got None"),
        ("batch: {samples: 3}\n", "data: required, and not given"),
    ],
)
def test_unusable_file_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as fault:
        load_config(path)
    assert said in str(fault.value)


def test_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match=r"cannot read config .*run\.yaml"):
        load_config(path)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
trees = st.recursive(
    leaves, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3), max_leaves=8
)


@given(key=st.sampled_from([*RunConfig.model_fields, "unknown"]), value=trees)
def test_no_value_breaks_the_explanation(key: str, value: object) -> None:
    """Whatever a file holds, the answer is a config or a ConfigError, never another fault."""
    whole = {**yaml.safe_load(MINI.read_text()), key: value}
    try:
        assert isinstance(parse_config(whole), RunConfig)
    except ConfigError as fault:
        assert str(fault)
