"""Fixtures that cross rooms: one Ray instance per session, and a small latent cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("busy", deadline=None)  # a machine that does other work too makes no property false
settings.load_profile("busy")

# The profiles of tests are no user's. What one test measured serves those behind it: a profile takes seconds.
os.environ["ZELLIGE_CACHE"] = tempfile.mkdtemp(prefix="zc")


@pytest.fixture
def own_profiles(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test measures for itself."""
    monkeypatch.setenv("ZELLIGE_CACHE", str(tmp_path_factory.mktemp("profiles")))


@pytest.fixture(scope="session")
def ray_instance() -> Iterator[Any]:
    """The session's own Ray: loopback, own temp folder, no token, no dashboard."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    from zellige_ray.actors.session import SYSTEM_CONFIG

    folder = tempfile.mkdtemp(prefix="zr")  # short: unix sockets lie in it
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=folder,
        _node_ip_address="127.0.0.1",
        _system_config=SYSTEM_CONFIG,
    )
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
