"""What an import loads: planning on a laptop must not wait for torch and ray, nor need them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "ray", "diffusers", "av", "matplotlib", "transformers")


def loaded_by(statement: str) -> set[str]:
    """The heavy packages that are loaded after a statement in a new process."""
    code = f"import sys\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return set(answer.stdout.split()) & set(HEAVY)


@pytest.mark.parametrize(
    "statement",
    [
        "import zellige_ray",
        "import zellige_ray.placement",
        "from zellige_ray import Plan, RunConfig, Sequence, load_config",
        "import zellige_ray.data.index, zellige_ray.data.sampler, zellige_ray.data.ledger",
        "import zellige_ray.models.specs",
        "import zellige_ray.monitor.progress, zellige_ray.monitor.summary, zellige_ray.monitor.report",
        "import zellige_ray.cli; zellige_ray.cli.main(['--version'])",
    ],
)
def test_light_face_loads_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement) == set()


def test_the_probe_sees_a_heavy_import() -> None:
    assert loaded_by("import matplotlib") == {"matplotlib"}


def test_every_public_name_exists_and_is_the_real_one() -> None:
    import zellige_ray

    for name in zellige_ray.__all__:
        assert getattr(zellige_ray, name) is not None
    assert set(zellige_ray.__all__) <= set(dir(zellige_ray))
    assert set(zellige_ray.__all__) == {*zellige_ray._face, "__version__"}
    from zellige_ray.config import RunConfig

    assert zellige_ray.RunConfig is RunConfig


def test_unknown_public_name_is_an_attribute_error() -> None:
    import zellige_ray

    with pytest.raises(AttributeError, match="no_such_name"):
        zellige_ray.no_such_name  # noqa: B018
