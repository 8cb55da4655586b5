"""Environment: the versions and the machine that a run ran on, for whoever repeats it."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import zellige_ray
from zellige_ray.files import write_file
from zellige_ray.monitor import run_folder

distributions = ("torch", "ray", "diffusers", "numpy", "av", "safetensors", "transformers", "flash-attn")


def environment() -> dict[str, Any]:
    """Versions and hardware of this process's machine as JSON values; what is not installed is absent."""
    versions = {"zellige": zellige_ray.__version__}
    for name in distributions:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count() or 0,
        "versions": versions,
    }


def write_environment(folder: Path, **more: Any) -> None:
    """Writes `environment.json` into the run folder; `more` is what only the caller knows, such as the GPUs."""
    text = json.dumps({**environment(), **more}, indent=1)
    write_file(folder / run_folder.ENVIRONMENT, text)
