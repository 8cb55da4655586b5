"""The package: pins that fit the ranges and any build of torch, and what is uploaded or shipped."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import zellige_ray

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_direct_dependency_is_pinned_inside_its_range() -> None:
    pins = {canonical(name): Version(version) for name, version in PINS.items()}
    for requirement in map(Requirement, [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]):
        name = canonical(requirement.name)
        assert name in pins, f"{name} has no pin"
        assert pins[name] in requirement.specifier, f"{name} {pins[name]} is outside {requirement.specifier}"
        assert {s.operator for s in requirement.specifier} == {">=", "<"}, f"{name} needs a floor and a cap"


def test_no_pin_asks_for_one_build_of_torch() -> None:
    for name, version in PINS.items():
        assert "+" not in version, f"{name}=={version} is one build"
        assert not name.startswith(("nvidia", "triton", "cuda")), f"{name} comes with a CUDA build only"


def test_version_has_one_source() -> None:
    assert "version" in PROJECT["dynamic"]
    assert f"## {zellige_ray.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", ["zellige_ray/data/index.py", "zellige_ray/configs/mini.yaml", "pyproject.toml"])
def test_upload_to_a_cluster_keeps_the_package(name: str) -> None:
    assert not ignored(name)


@pytest.mark.parametrize(
    "name", [".git/HEAD", ".venv/bin/python", "data/mini-cache/a.safetensors", "runs/latest/x", "tests/a.py"]
)
def test_upload_to_a_cluster_leaves_bulk_behind(name: str) -> None:
    assert ignored(name)


def ignored(name: str) -> bool:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines((ROOT / ".rayignore").read_text().splitlines()).match_file(name)


def test_package_is_typed_and_licensed() -> None:
    assert (ROOT / "zellige_ray" / "py.typed").is_file()
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
