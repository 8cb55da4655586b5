"""The TorchTrainer integration on a real Ray: both example scripts, and a worker killed in the middle of a step."""

from __future__ import annotations

import ast
import difflib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.ray_head import Head, ray_head

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
BEFORE, AFTER = (ROOT / "examples" / f"torch_trainer_{x}.py" for x in ("before", "after"))
MAX_ADDED = 10


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ray_head("disabled", num_cpus=4) as started:
        yield started


def run(head: Head, script: Path, *words: str) -> str:
    environment = head.environment | {"RAY_ADDRESS": head.gcs, "PYTHONPATH": str(ROOT), "RAY_DEDUP_LOGS": "0"}
    done = subprocess.run(
        [sys.executable, str(script), *words], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr


def losses(said: str) -> list[float]:
    """What the first rank reported, in order."""
    reports = re.findall(r"Reporting training result (\d+): .*?'loss': ([\d.e-]+).*? from rank 0", said)
    return [float(loss) for _, loss in sorted(reports, key=lambda r: int(r[0]))]


def test_the_script_before_runs(head: Head) -> None:
    assert len(losses(run(head, BEFORE, "2", "1"))) == 2


def test_the_script_after_runs_and_its_loss_does_not_depend_on_the_number_of_workers(head: Head) -> None:
    one, two = (losses(run(head, AFTER, str(n), "2")) for n in (1, 2))
    assert len(one) == len(two) == 4
    assert two == pytest.approx(one, rel=1e-5)


def rows_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {p.stem: [json.loads(line) for line in p.read_text().splitlines()] for p in folder.glob("*.jsonl")}


def test_a_killed_worker_costs_one_step_the_survivor_goes_on_and_a_newcomer_joins(head: Head, tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    broken.mkdir(), whole.mkdir()
    run(head, Path(__file__).with_name("killed_worker.py"), str(broken), "1000000", "kill")
    rows = rows_of(broken)
    assert len(rows) == 3, "the survivor, the one that was killed, the newcomer; the survivor is one process"
    survivor = max(rows, key=lambda pid: len(rows[pid]))
    counted = [r for r in rows[survivor] if r["loss"] == r["loss"]]
    last = counted[-1]["step"]
    assert [r["step"] for r in counted] == list(range(1, last + 1)), "no step is lost, none is doubled"
    assert {r["size"] for r in counted} == {1, 2}
    alone = [r for r in counted if r["size"] == 1]
    assert alone[0]["step"] == 4
    assert not any(r["reported"] for r in alone[:-1])
    assert counted[-1]["size"] == 2
    stall = alone[0]["at"] - counted[2]["at"]
    sys.stdout.write(f"stall {stall:.2f} s, alone for {len(alone)} steps\n")
    assert stall < 5.0
    run(head, Path(__file__).with_name("killed_worker.py"), str(whole), str(last), "whole")
    unbroken = next(iter(rows_of(whole).values()))
    assert [r["loss"] for r in counted] == pytest.approx([r["loss"] for r in unbroken], rel=1e-9)


def test_the_script_after_adds_at_most_ten_lines_and_keeps_the_trainer() -> None:
    before, after = (path.read_text(encoding="utf-8").splitlines() for path in (BEFORE, AFTER))
    lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    added = [x[1:].strip() for x in lines if x.startswith("+") and x[1:].strip() and not x.startswith('+"""')]
    assert 0 < len(added) <= MAX_ADDED, added
    for kept in ("TorchTrainer(", "ScalingConfig(", "RunConfig(", "ray.train.report("):
        assert any(kept in line for line in after)
    ast.parse("\n".join(after))
