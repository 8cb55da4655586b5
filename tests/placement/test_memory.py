"""The memory model: counts of a round against the engine's own tables, state by layout, a value that goes to JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zellige_ray.attention.layout import compile_layout
from zellige_ray.attention.tilings import random_round
from zellige_ray.errors import ConfigError
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.memory import COUNTS, FEW, MemoryModel, Moment, StateSize, count_more
from zellige_ray.placement.traffic import measure_traffic

HEADS = 6


@pytest.mark.parametrize("seed", range(12))
def test_counts_of_a_random_round_are_those_of_the_compiled_layouts(seed):
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(1, 60, 7)]
    captions = [int(n) for n in rng.integers(0, 5, 7)]
    round_ = random_round(rng, lengths, 3, HEADS, captions)
    counts = count_more(round_, measure_traffic(round_, np.zeros(3, dtype=np.int64), 1), 3)
    for rank in range(3):
        layout = compile_layout(round_, rank, HEADS)
        t = layout.tables
        got = dict(zip(COUNTS[FEW:], counts[:, rank].tolist(), strict=True))
        assert got["whole_tokens"] == layout.num_whole
        assert got["caption_tokens"] == sum(max(1, captions[p.sequence]) for p in layout.pieces)
        assert got["sequences"] == len({p.sequence for p in layout.pieces})
        assert (got["unit_q_rows"], got["unit_kv_rows"]) == (t.unit_q_rows, t.unit_kv_rows)
        home, tile = sum(t.q_home.values()), sum(t.q_tile.values())
        kv_home, kv_tile = sum(t.kv_home.values()), sum(t.kv_tile.values())
        assert (got["sent_in_rows"], got["received_in_rows"]) == (home + 2 * kv_home, tile + 2 * kv_tile)
        assert (got["sent_out_rows"], got["received_out_rows"]) == (tile, home)


def test_the_largest_run_is_that_of_equal_neighbours():
    rng = np.random.default_rng(0)
    round_ = random_round(rng, [5, 5, 5, 12, 7], 1, HEADS, use=("whole",))
    counts = count_more(round_, measure_traffic(round_, np.zeros(1, dtype=np.int64), 1), 1)
    assert counts[COUNTS.index("whole_run_tokens") - FEW, 0] == 15


def test_state_by_layout():
    nodes = (7, 7, 9, 7)
    assert StateSize(100.0).on_ranks(nodes).tolist() == [100] * 4
    assert StateSize(10.0, 80.0).on_ranks(nodes).tolist() == [10 + 20] * 4
    assert StateSize(10.0, 90.0, by_node=True).on_ranks(nodes).tolist() == [40, 40, 100, 40]


def test_a_model_goes_to_json_and_back_and_says_what_is_wrong_with_another():
    moments = (Moment.of("mlp", constant=7.0, tokens=3.0, unit_q_rows=2.0), Moment.of("attention", tokens=4.0))
    model = MemoryModel(StateSize(10.0, 20.0, True), moments, 1.1, measured=True)
    value = json.loads(json.dumps(model.to_dict()))
    assert MemoryModel.from_dict(value) == model
    value["moments"][0]["unit_rows"] = 1.0
    with pytest.raises(ConfigError, match="unit_rows"):
        MemoryModel.from_dict(value)


def test_capacity_is_that_of_the_moment_that_fills_first():
    moments = (Moment.of("a", constant=100.0, tokens=1.0), Moment.of("b", tokens=2.0))
    model = MemoryModel(StateSize(50.0), moments)
    assert model.token_capacity(Cluster((0, 0), (250, 160), (1.0, 1.0))).tolist() == [100, 10]
    assert model.token_bytes() == 2
