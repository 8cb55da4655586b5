"""What the placement tests share: costs of presets, and the referee where it lies beside the project."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from zellige_ray.placement import CostModel, load_hardware, load_model

REFEREE = Path(__file__).resolve().parents[3] / "shared" / "referee"


@pytest.fixture(scope="session")
def flux16() -> CostModel:
    return CostModel(load_hardware("a800-16"), load_model("flux"))


@pytest.fixture(scope="session")
def flux32() -> CostModel:
    return CostModel(load_hardware("a6000-32"), load_model("flux"))


@pytest.fixture(scope="session")
def referee() -> SimpleNamespace:
    """The referee's modules; skipped where they don't lie beside the project."""
    if not REFEREE.is_dir():
        pytest.skip(f"the referee is not at {REFEREE}")
    sys.path.insert(0, str(REFEREE))
    try:
        import judge
        import presets
        import rivals
        import workloads
    finally:
        sys.path.remove(str(REFEREE))
    return SimpleNamespace(judge=judge, presets=presets, rivals=rivals, workloads=workloads)
