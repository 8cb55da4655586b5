"""The documents: they name only commands, targets, files and functions that exist, and no machine."""

from __future__ import annotations

import argparse
import difflib
import doctest
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from zellige_ray import cli
from zellige_ray.commands.bench import benches
from zellige_ray.config import parse_config

ROOT = Path(__file__).parent.parent
DOCS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted((ROOT / "docs").glob("*.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def text_of(path: Path) -> str:
    """A document without its list of what does not exist yet."""
    return re.sub(r"\n## Not yet\n.*?(?=\n## |\Z)", "\n", path.read_text(), flags=re.DOTALL)


def code_of(path: Path) -> list[str]:
    """Everything set as code: spans, and the lines of blocks."""
    text = text_of(path)
    blocks = re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [*spans, *(line.strip() for block in blocks for line in block.splitlines())]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_commands_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for code in code_of(path):
        for verb in re.findall(r"(?:^|[ =])(?:zellige|python -m zellige_ray) ([a-z]+)", code):
            assert verb in cli.verbs, f"{path.name}: `{code}`"
        for bench in re.findall(r"(?:^|[ =])(?:zellige|python -m zellige_ray) bench ([a-z]+)", code):
            assert bench in benches, f"{path.name}: `{code}`"
        for target in re.findall(r"(?:^| )make ([a-z]+)", code):
            assert target in targets, f"{path.name}: `{code}`"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_files_exist(path: Path) -> None:
    made_by_a_run = (".venv/", "runs/", "data/my_cache", "data/cache", "data/_fetchers.py")
    for code in code_of(path):
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", code) and ("/" in code or code.endswith((".py", ".toml", ".md"))):
            if code.startswith(made_by_a_run) or re.fullmatch(r"zellige\.\w+/\d+", code):  # a format, not a file
                continue
            places = (ROOT / code, ROOT / "zellige_ray" / code, path.parent / code)
            assert any(place.exists() for place in places), f"{path.name}: `{code}`"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_functions_exist(path: Path) -> None:
    """`zellige_ray.room.module.name`, with or without a call, is there under that name."""
    for name in re.findall(r"\bzellige_ray(?:\.\w+)+", "\n".join(code_of(path))):
        module, rest = name, []
        while module:
            try:
                found = importlib.import_module(module)
                break
            except ModuleNotFoundError as fault:
                assert fault.name and name.startswith(fault.name), fault
                module, _, last = module.rpartition(".")
                rest.insert(0, last)
        for part in rest:
            assert hasattr(found, part), f"{path.name}: `{name}`"
            found = getattr(found, part)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_lead_to_files(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_python_runs(path: Path) -> None:
    """Blocks of `python` as programs that print something, but for the adapter, which tests/models runs."""
    blocks = (
        re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL) if path.name != "own-model.md" else []
    )
    assert blocks or path != ROOT / "README.md"
    for block in blocks:
        answer = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_sessions_say_what_they_claim(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of `pycon` as doctests, run in the root of the repository."""
    monkeypatch.chdir(ROOT)
    text = "\n".join(re.findall(r"```pycon\n(.*?)```", path.read_text(), flags=re.DOTALL))
    assert text or path.name not in ("concepts.md", "quickstart.md")
    result = doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(text, {}, path.name, str(path), 0))
    assert result.failed == 0


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_commands_are_understood(path: Path) -> None:
    """Every command of a `sh` block is parsed by its own parser: options exist, required ones are there."""
    for block in re.findall(r"```sh\n(.*?)```", path.read_text(), flags=re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0].endswith("zellige"):
                verb, *rest = words[1:]
                parser = argparse.ArgumentParser(prog=f"{path.name}: {line}", allow_abbrev=False)
                module = importlib.import_module(cli.verbs[verb].module)
                module.add_arguments(parser)
                parser.parse_args(rest)


def test_examples_of_yaml_are_configs() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "quickstart.md").read_text(), flags=re.DOTALL)
    assert parse_config(yaml.safe_load(block)).steps == 2000


def test_the_readme_shows_what_changes_in_a_torch_trainer_script() -> None:
    (block,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    before, after = (
        (ROOT / "examples" / f"torch_trainer_{name}.py").read_text().splitlines() for name in ("before", "after")
    )
    changed = [line for line in difflib.unified_diff(before, after, lineterm="", n=0) if line[0] in "+-"][2:]
    assert block.splitlines() == [line for line in changed if line[1:].strip() and line[1:4] != '"""']


def test_the_index_lists_every_document() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_the_probe_sees_a_command_that_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("Run `zellige fly --high`.\n\n## Not yet\n`zellige dream`\n\n## Then\n```sh\nmake magic\n```\n")
    assert code_of(path) == ["zellige fly --high", "make magic"]


def test_every_dependency_has_its_reason() -> None:
    wanted = [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]
    reasons = dict(
        re.findall(r"^\| `([\w.-]+)` \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    )
    for requirement in wanted:
        name = Requirement(requirement).name
        assert len(reasons.get(name, "")) > 15, f"CONTRIBUTING.md has no reason for {name}"


def test_exit_codes_of_the_readme_are_those_of_the_errors() -> None:
    from zellige_ray import errors

    table = dict(re.findall(r"^\| (\d+) \| (.+) \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    codes = {getattr(errors, name).exit_code for name in errors.__all__} | {0, cli.BAD_INPUT, cli.INTERRUPTED}
    assert {int(code) for code in table} == codes
    assert all(f"{code} " in cli._help().splitlines()[-1] for code in table)


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=60)
    if listed.returncode:
        pytest.skip("not a git checkout")
    foreign = re.compile("|".join(["/" + "work/", "/" + "root/", "/" + "home/" + r"\w", r"localhost:\d"]))
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if (
            name
            and path.is_file()
            and path.suffix in {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".css", ".json", ""}
        ):
            found = foreign.search(path.read_text(encoding="utf-8"))
            assert not found, f"{name}: {found and found.group()}"
