"""The command line: verbs, the nearest verb, exit codes, and that bad input writes nothing."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import zellige_ray
from tests.monitor.conftest import step_event
from zellige_ray import cli, errors
from zellige_ray.commands.arguments import run_command
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.ledger import Ledger
from zellige_ray.data.record import Record
from zellige_ray.monitor.metrics import JsonLines
from zellige_ray.training import checkpoint_files

ROOT = Path(__file__).parent.parent


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zellige_ray", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "COLUMNS": "100"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def test_help_lists_every_verb_and_the_exit_codes() -> None:
    answer = run("--help")
    assert answer.returncode == 0
    for name, verb in cli.verbs.items():
        assert f"{name} " in answer.stdout and verb.summary in answer.stdout
    assert "130 interrupted" in answer.stdout


def test_no_command_prints_help_and_is_bad_input() -> None:
    answer = run()
    assert answer.returncode == 2
    assert "commands:" in answer.stdout


@pytest.mark.parametrize("name", cli.verbs)
def test_every_listed_verb_exists_and_explains_itself(name: str) -> None:
    module = importlib.import_module(cli.verbs[name].module)
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    assert callable(module.run)
    assert module.__doc__ and len(module.__doc__.splitlines()[0]) > 20
    assert parser.format_help()


@pytest.mark.parametrize(("typed", "meant"), [("trian", "train"), ("ledgr", "ledger"), ("rapport", "report")])
def test_unknown_verb_names_the_nearest(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([typed]) == 2
    assert f"did you mean '{meant}'" in capsys.readouterr().err


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"zellige {zellige_ray.__version__}\n"


class FakeVerb:
    """A verb's module that raises what it is told."""

    def __init__(self, fault: BaseException) -> None:
        self.fault = fault

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Takes none."""

    def run(self, args: argparse.Namespace) -> int:
        raise self.fault


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (errors.ZelligeError("a"), 1, "error: a"),
        (errors.CommError("b"), 1, "error: b"),
        (errors.ConfigError("c"), 2, "error: c"),
        (errors.DataError("d"), 2, "error: d"),
        (errors.ModelError("e"), 2, "error: e"),
        (errors.PlanError("f"), 2, "error: f"),
        (errors.CheckpointError("g"), 2, "error: g"),
        (errors.PoolError("h"), 3, "error: h"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_code_follows_the_fault(
    fault: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: FakeVerb(fault))
    assert cli.main(["train"]) == code
    assert capsys.readouterr().err.strip() == said


def test_a_fault_nobody_foresaw_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: FakeVerb(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["train"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stepz=3"], "stepz: unknown key, the nearest known one is steps"),
        (["mini", "model.layers=four"], "model.layers: expected a valid integer, got 'four'"),
        (["nowhere.yaml"], "cannot read config nowhere.yaml"),
        (["mini", "steps"], "override 'steps' is not of the form key=value"),
        (["data.source=nowhere"], "nowhere"),
        (["model.name=wam"], "wan"),
    ],
)
def test_bad_input_to_train_is_exit_code_2_and_writes_nothing(arguments: list[str], said: str, tmp_path: Path) -> None:
    answer = run("train", *arguments, cwd=tmp_path)
    assert answer.returncode == 2, answer.stderr
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_ledger_of_nothing_is_bad_input(tmp_path: Path) -> None:
    answer = run("ledger", cwd=tmp_path)
    assert answer.returncode == 2
    assert "there is no ledger at runs/latest" in answer.stderr


def test_ledger_tells_a_whole_run_from_one_that_lost_a_sample(tmp_path: Path) -> None:
    index = Index(tuple(SampleMeta(name, "image", (16, 1, 4, 4), 3) for name in "ab"))
    for folder, first in (("whole", ("a", "b")), ("lossy", ("a",))):
        ledger = Ledger(tmp_path / folder / "ledger.jsonl", index)
        ledger.append(Record(1, 0, first, "plan", 0, 2, 0.5))
        ledger.append(Record(2, 1, ("b",), "plan", 0, 2, 0.5))
        ledger.close()
    whole, lossy = (run("ledger", str(tmp_path / name), "--json", cwd=tmp_path) for name in ("whole", "lossy"))
    assert (whole.returncode, lossy.returncode) == (0, 1), whole.stderr + lossy.stderr
    assert json.loads(whole.stdout)["samples_lost"] == 0
    assert json.loads(lossy.stdout)["samples_lost"] == 1


@pytest.fixture
def run_of_two_steps(tmp_path: Path) -> Path:
    """A run folder with a ledger, a checkpoint of its second step, and metrics."""
    index = Index(tuple(SampleMeta(name, "image", (16, 1, 4, 4), 3) for name in "ab"))
    ledger = Ledger(tmp_path / "ledger.jsonl", index)
    ledger.append(Record(1, 0, ("a",), "plan", 0, 2, 0.5))
    ledger.append(Record(2, 0, ("b",), "plan", 0, 2, 0.5))
    ledger.close()
    return tmp_path


def cut_last_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("witness", ["checkpoint", "metrics"])
def test_a_ledger_whose_last_line_is_gone_is_found_out(
    run_of_two_steps: Path, witness: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if witness == "checkpoint":
        partial = checkpoint_files.partial_folder(run_of_two_steps, 2)
        (partial / checkpoint_files.TENSORS).touch()
        checkpoint_files.seal(partial, checkpoint_files.Position(2, {}, {}, 1, "", 0))
    else:
        with JsonLines(run_of_two_steps / "metrics.jsonl") as sink:
            for number in (1, 2):
                sink.see(step_event(number))
    assert cli.main(["ledger", str(run_of_two_steps), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines_gone"] == ""
    cut_last_line(run_of_two_steps / "ledger.jsonl")
    assert cli.main(["ledger", str(run_of_two_steps), "--json"]) == 1
    figures = json.loads(capsys.readouterr().out)
    assert not figures["ok"] and "step 2, the ledger ends at step 1: lines of it are gone" in figures["lines_gone"]
    (run_of_two_steps / "ledger.jsonl").write_bytes(b"")
    assert cli.main(["ledger", str(run_of_two_steps), "--json"]) == 1


def test_a_ledger_without_a_step_proves_nothing(run_of_two_steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_of_two_steps / "ledger.jsonl"
    for _ in range(3):  # two steps, then the header
        assert cli.main(["ledger", str(path)]) == (0 if path.read_bytes().count(b"commit") else 2)
        cut_last_line(path)
    assert path.read_bytes() == b""
    assert "holds no step: there is nothing to verify" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_fault(tmp_path: Path) -> None:
    command = f"'{sys.executable}' -m zellige_ray --help | true; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0
    assert "Traceback" not in answer.stderr


def test_an_output_that_is_full_is_a_named_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "zellige_ray", "config", "--markdown"]
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert answer.returncode == 1
    assert (
        answer.stderr == "error: the output can't be written: No space left on device; free space, or write elsewhere\n"
    )


@pytest.mark.parametrize("name", cli.verbs)
def test_every_command_with_overrides_takes_them_behind_an_option(name: str) -> None:
    module = importlib.import_module(cli.verbs[name].module)
    probe = argparse.ArgumentParser()
    module.add_arguments(probe)
    if not any(action.dest == "words" for action in probe._actions):
        return
    seen: list[argparse.Namespace] = []
    fake = FakeVerb(ZeroDivisionError())
    fake.add_arguments = module.add_arguments  # type: ignore[method-assign]
    fake.run = lambda args: seen.append(args) or 0  # type: ignore[method-assign, func-returns-value]
    assert run_command(name, fake, ["mini", "--json", "steps=3"]) == 0
    assert seen[0].words == ["mini", "steps=3"]
