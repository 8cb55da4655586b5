"""The public face, `import zellige_ray as zr`: its names, signatures, laziness, and examples that run."""

from __future__ import annotations

import doctest
import inspect
import json
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import zellige_ray as zr
from zellige_ray import api, cli

ROOT = Path(__file__).parent.parent
NAMES = {
    "Cluster",
    "CostModel",
    "HardwareProfile",
    "ModelPreset",
    "Plan",
    "PolicyFigures",
    "RunConfig",
    "Sequence",
    "ZelligeError",
    "__version__",
    "load_config",
    "load_hardware",
    "load_model",
    "make_plan",
    "parse_config",
    "plan",
    "plan_from_json",
    "plan_to_json",
    "profile",
    "simulate",
    "train",
}
SIGNATURES = {
    "train": {"config": None, "overrides": (), "on_event": ...},
    "profile": {"config": None, "overrides": (), "out": ..., "budget_s": 12.0, "say": ...},
    "plan": {"batch": None, "hardware": None, "model": None, "policy": "zellige"},
    "simulate": {
        "workload": None,
        "hardware": None,
        "model": None,
        "policies": ("zellige", "even", "bags:best-static", "pow2", "cp", "dp"),
        "batches": 10,
        "seed": 0,
    },
    "make_plan": {"sequences": None, "cluster": None, "cost": None, "policy": "zellige", "epoch": 0},
    "load_config": {"path": None, "overrides": ()},
    "parse_config": {"value": None},
    "load_hardware": {"name_or_path": None},
    "load_model": {"name_or_path": None},
    "plan_to_json": {"plan": None},
    "plan_from_json": {"value": None},
}
BATCH = (zr.Sequence("clip", 75_600, 120), *(zr.Sequence(f"picture-{i}", 4_096, 30) for i in range(10)))


def test_the_names_are_these_and_no_others() -> None:
    assert set(zr.__all__) == NAMES


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_keep_their_names_and_defaults(name: str) -> None:
    """Callers write them down. None stands for required, ... for any default."""
    found = inspect.signature(getattr(zr, name)).parameters
    assert list(found) == list(SIGNATURES[name])
    for key, default in SIGNATURES[name].items():
        if default is None:
            assert found[key].default is inspect.Parameter.empty, key
        elif default is not ...:
            assert found[key].default == default, key


@pytest.mark.parametrize("name", sorted(NAMES - {"__version__"}))
def test_everything_is_documented_and_typed(name: str) -> None:
    value = getattr(zr, name)
    assert inspect.getdoc(value)
    if inspect.isfunction(value):
        hints = typing.get_type_hints(value)
        assert set(hints) == {*inspect.signature(value).parameters, "return"}


@pytest.mark.parametrize("name", ["plan", "simulate", "train"])
def test_examples_run_and_say_what_they_claim(name: str) -> None:
    (example,) = [t for t in doctest.DocTestFinder(recurse=False).find(getattr(zr, name), name, api) if t.examples]
    runner = doctest.DocTestRunner()
    runner.run(example)
    assert runner.tries > 1 and runner.failures == 0


def test_planning_and_simulating_load_neither_torch_nor_ray_nor_matplotlib() -> None:
    code = """
import sys, zellige_ray as zr
zr.plan([zr.Sequence("a", 5_000)], "cpu", "dit-xl")
zr.simulate("few", "a800-16", "flux", ["zellige"], batches=1)
assert callable(zr.train)
print(sorted({"torch", "ray", "diffusers", "av", "matplotlib", "networkx"} & set(sys.modules)))
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "[]", answer.stderr


def test_names_paths_and_values_give_the_same_plan(tmp_path: Path) -> None:
    rows = [{"id": s.id, "tokens": s.tokens, "text_tokens": s.text_tokens} for s in BATCH]
    (tmp_path / "batch.jsonl").write_text("\n".join(map(json.dumps, rows)))
    by_value = zr.plan(BATCH, zr.load_hardware("h200-8"), zr.load_model("flux"))
    by_name = zr.plan(tmp_path / "batch.jsonl", "h200-8", "flux")
    by_generator = zr.plan((s for s in reversed(BATCH)), "h200-8", "flux")
    assert by_value == by_name == by_generator
    assert zr.plan_from_json(json.loads(json.dumps(zr.plan_to_json(by_value)))) == by_value


def test_the_command_and_the_function_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--workload", "few", "--hardware", "a800-16", "--model", "flux", "--policies", "zellige,cp"]
    assert cli.main(["simulate", *words, "--batches", "2", "--seed", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["policies"]
    ours = zr.simulate("few", "a800-16", "flux", ["zellige", "cp"], batches=2, seed=3)
    assert [row["step_s"] for row in said] == [figures.step_s for figures in ours]
    assert zr.simulate([BATCH], "a800-16", "flux", ["zellige"])[0].step_s == pytest.approx(
        zr.plan(BATCH, "a800-16", "flux").predicted.step_s
    )


def test_a_perfect_plan_has_no_gap() -> None:
    """Not -2e-16, which would be printed as -0.0%."""
    assert f"{zr.plan([zr.Sequence('a', 100)], 'cpu', 'dit-xl').predicted.gap:.1%}"[0] != "-"
    batch = [zr.Sequence("clip", 75_600), *(zr.Sequence(f"picture-{i}", 4_096) for i in range(40))]
    assert f"{zr.plan(batch, 'h200-8', 'wan-1.3b').predicted.gap:.1%}"[0] != "-"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: zr.plan([], "h200-8", "flux"), "0 sequences"),
        (lambda: zr.plan(BATCH, "h200", "flux"), "nearest is 'h200-8'"),
        (lambda: zr.plan(BATCH, "h200-8", "flx"), "nearest is 'flux'"),
        (lambda: zr.plan(BATCH, "h200-8", "flux", "zelige"), "nearest is 'zellige'"),
        (lambda: zr.plan([("a", 5)], "h200-8", "flux"), "item 0 of the batch is ('a', 5)"),  # type: ignore[list-item]
        (lambda: zr.plan([BATCH[0], zr.Sequence(7, 5)], "h200-8", "flux"), "item 1"),  # type: ignore[arg-type]
        (lambda: zr.plan("nowhere.jsonl", "h200-8", "flux"), "cannot read batch nowhere.jsonl"),
        (lambda: zr.simulate("fw", "h200-8", "flux"), "nearest is 'few'"),
        (lambda: zr.simulate("few", "h200-8", "flux", batches=0), "batches is 0"),
        (lambda: zr.simulate("few", "h200-8", "flux", seed=-1), "seed is -1"),
        (lambda: zr.simulate("few", "h200-8", "flux", []), "policies is empty"),
        (lambda: zr.simulate([], "h200-8", "flux"), "0 batches"),
        (lambda: zr.train("nowhere.yaml"), "cannot read config nowhere.yaml"),
    ],
)
def test_bad_input_is_a_zellige_error_that_names_it(call: typing.Callable[[], object], said: str) -> None:
    with pytest.raises(zr.ZelligeError) as fault:
        call()
    assert said in str(fault.value) and fault.value.exit_code == 2


def test_overrides_of_a_complete_config_are_refused() -> None:
    config = zr.parse_config({"data": {"source": "mini"}, "batch": {"samples": 4}})
    with pytest.raises(TypeError, match="overrides go with a path"):
        zr.train(config, ["steps=3"])
