"""The Makefile: what is installed once, what again after a change, and what is handed on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """make as from a shell, also when these tests are run by make themselves."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS")}
    return subprocess.run(
        ["make", *arguments], cwd=clone, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def would_run(clone: Path, *arguments: str) -> str:
    """The commands that make would run, without running them."""
    answer = make(clone, "-n", *arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def install(clone: Path, *stamps: str) -> None:
    """Leaves the stamps of an installation that is younger than what it was made from."""
    (clone / ".venv").mkdir(exist_ok=True)
    for i, stamp in enumerate(stamps):
        path = clone / ".venv" / stamp
        path.touch()
        later = (clone / "pyproject.toml").stat().st_mtime + 10 + i
        os.utime(path, (later, later))


def test_first_train_installs_with_pins_then_trains(clone: Path) -> None:
    commands = would_run(clone, "train")
    assert (
        commands.index("-m venv") < commands.index("--constraint constraints.txt") < commands.index("zellige_ray train")
    )
    assert "[dev]" not in commands


def test_second_train_installs_nothing(clone: Path) -> None:
    install(clone, ".stamp-train")
    assert would_run(clone, "train").strip() == ".venv/bin/python -m zellige_ray train"


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_install_again(clone: Path, changed: str) -> None:
    install(clone, ".stamp-train", ".stamp-dev")
    later = (clone / "pyproject.toml").stat().st_mtime + 100
    os.utime(clone / changed, (later, later))
    assert "pip" in would_run(clone, "train")
    assert "[dev]" in would_run(clone, "test")


def test_tests_install_what_they_need(clone: Path) -> None:
    install(clone, ".stamp-train")
    assert "[dev]" in would_run(clone, "test")


def test_arguments_and_interpreter_are_handed_on(clone: Path) -> None:
    assert "zellige_ray train my.yaml steps=5" in would_run(clone, "train", "ARGS=my.yaml steps=5")
    assert "python3.12 -m venv" in would_run(clone, "train", "PYTHON=python3.12")


def test_an_old_interpreter_is_named(clone: Path) -> None:
    old = clone / "old-python"
    claim = "import sys; sys.version_info = (3, 9); sys.version = '3.9.1 x'; exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec python3 -c "{claim}" "$2"\n')
    old.chmod(0o755)
    answer = make(clone, "train", f"PYTHON={old}")
    assert answer.returncode == 2
    assert "Zellige needs Python 3.11 or newer" in answer.stderr and "is 3.9.1" in answer.stderr
    assert not (clone / ".venv").exists()
