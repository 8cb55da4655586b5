"""The engine's benchmark: its memory bar, and that it tells what it promises."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from zellige_ray.models.trials import memory_over_plain
from zellige_ray.training.live_bytes import peak_bytes


def test_packed_activations_take_at_most_a_twentieth_more_than_plain_ones():
    assert 0.9 < memory_over_plain(peak_bytes, sequences=3) <= 1.05


@pytest.mark.slow
def test_bench_engine_prints_its_figures_as_json():
    command = [sys.executable, "-m", "zellige_ray", "bench", "engine", "--json", "--repeats", "3"]
    figures = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    ratios = {"packed_over_serial_short", "packed_over_serial", "coalesced_over_separate", "overlapped_over_not"}
    assert ratios | {"memory_over_plain"} <= figures.keys()
    assert all(figures[name] > 0 for name in ratios)
    assert figures["coalesced_over_separate"] > 1.0
