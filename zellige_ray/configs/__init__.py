"""Run configurations that come with the package, by name."""

from __future__ import annotations

from pathlib import Path

configs: dict[str, Path] = {
    "mini": Path(__file__).parent / "mini.yaml",
}
