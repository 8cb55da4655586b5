"""Rooms import only downward: the contracts of pyproject.toml, run where every test runs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def lint(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    return subprocess.run(
        [*command, "--config", str(config), "--no-cache"], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_every_contract_is_kept() -> None:
    answer = lint(ROOT, ROOT / "pyproject.toml")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_planted_upward_import_is_caught(tmp_path: Path) -> None:
    room = tmp_path / "zellige_ray"
    for name in ("placement", "monitor"):
        (room / name).mkdir(parents=True)
        (room / name / "__init__.py").write_text("")
    (room / "__init__.py").write_text("")
    (room / "placement" / "planner.py").write_text("import torch\nfrom zellige_ray.monitor import progress\n")
    (room / "monitor" / "progress.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(
        "[tool.importlinter]\nroot_package = 'zellige_ray'\ninclude_external_packages = true\n"
        "[[tool.importlinter.contracts]]\nname = 'pure'\ntype = 'forbidden'\n"
        "source_modules = ['zellige_ray.placement']\nforbidden_modules = ['torch', 'zellige_ray.monitor']\n"
    )
    answer = lint(tmp_path, tmp_path / "pyproject.toml")
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "zellige_ray.placement.planner" in answer.stdout


def test_every_room_stands_on_a_floor() -> None:
    """A new room that no contract mentions would be free to import anything."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (c["layers"] for c in contracts if c["type"] == "layers")
    placed = {name.strip() for layer in layers for name in layer.split("|")} | {"zellige_ray.monitor"}
    rooms = {
        f"zellige_ray.{path.stem}"
        for path in (ROOT / "zellige_ray").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").is_file()) and path.stem != "__init__"
    }
    assert rooms - placed == {"zellige_ray.configs"}, "data only: packaged run configurations"
