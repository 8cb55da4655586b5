"""The timeline on hand-made plans with known answers, and the bounds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from zellige_ray.placement import (
    Cluster,
    CostModel,
    HardwareProfile,
    ModelPreset,
    Plan,
    Sequence,
    lower_bound_s,
    simulate,
)
from zellige_ray.placement.batch import make_batch
from zellige_ray.placement.pack import pack_round
from zellige_ray.placement.timeline import time_round

N, H, D, LAYERS = 1000, 24, 3072, 57
MODEL = ModelPreset("m", LAYERS, D, H, 4.0, "joint", 2, "full")
SLOW_WIRE = HardwareProfile("h", 1, 2, 1 << 45, 1e30, 1e30, 1e9, 1e9, 0.0)
COMPUTE = dataclasses.replace(SLOW_WIRE, linear_flops=1e12, attention_flops=1e12)
UNIT = N * D * 2 * 3 * LAYERS / 1e9  # one tensor, three passes, all layers, at 1 GB/s


def step(hardware, rows, *, cluster=None, **model):
    """rows: (tokens home, attention home) of each sequence, or a list of shards and tiles."""
    cost = CostModel(hardware, dataclasses.replace(MODEL, **model))
    cluster = cluster or hardware.cluster()
    batch = make_batch([Sequence(f"s{k}", N) for k in range(len(rows))], cost)
    shards, tiles = [], []
    for k, row in enumerate(rows):
        if isinstance(row, dict):
            shards += [(k, *x) for x in row["shards"]]
            tiles += [(k, *x) for x in row["tiles"]]
        else:
            shards.append((k, row[0], 0, N))
            tiles.append((k, row[1], 0, H, 0, N))
    round_ = pack_round(batch, H, np.full(len(rows), -1), shards, tiles)
    return simulate(Plan(cluster.world_size, (round_,), "hand"), cluster, cost)


def test_attention_away_from_home_moves_q_k_v_in_and_o_out():
    assert step(SLOW_WIRE, [(0, 1)]).step_s == pytest.approx(4 * UNIT, rel=1e-6)


def test_links_are_full_duplex():
    assert step(SLOW_WIRE, [(0, 1), (1, 0)]).step_s == pytest.approx(4 * UNIT, rel=1e-6)


def test_a_shared_head_takes_its_keys_to_both_ranks():
    shared = {
        "shards": [(0, 0, 500), (1, 500, N)],
        "tiles": [(0, 0, 1, 0, 500), (1, 0, 1, 500, N), (0, 1, 12, 0, N), (1, 12, 24, 0, N)],
    }
    cost = CostModel(SLOW_WIRE, MODEL)
    batch = make_batch([Sequence("s", N)], cost)
    shards, tiles = ([(0, *x) for x in shared[key]] for key in ("shards", "tiles"))
    time = time_round(pack_round(batch, H, np.array([-1]), shards, tiles), SLOW_WIRE.cluster(), cost)
    assert time.moved_rows == 500 * 12 + 500 * 13 * 2 + 500 * 11 + 500 * 12 * 2 + 500 * 12 + 500 * 11


def test_a_slow_rank_with_half_the_work_ends_with_the_others():
    hardware = dataclasses.replace(COMPUTE, speed=(1.0, 0.5))
    predicted = step(hardware, [(0, 0), (0, 0), (1, 1)])
    assert predicted.gap == pytest.approx(0, abs=1e-9)
    assert sum(x.idle_s for x in predicted.ranks) == pytest.approx(0, abs=1e-9)


def test_ranks_without_a_shared_sequence_do_not_wait_for_each_other():
    predicted = step(COMPUTE, [(0, 0), (0, 0), (1, 1)])
    one, two = predicted.ranks[1], predicted.ranks[0]
    assert two.linear_s + two.attention_s == pytest.approx(2 * (one.linear_s + one.attention_s))
    assert one.idle_s == pytest.approx(one.linear_s + one.attention_s)


def test_own_attention_hides_the_exchange_pass_by_pass():
    alone = step(COMPUTE, [(0, 1)])
    fast = dataclasses.replace(COMPUTE, intra_node_bytes_per_s=1e15)
    hidden = step(fast, [(0, 1), (0, 0), (1, 1)])
    assert all(x.exchange_s < 1e-6 for x in hidden.ranks)
    partly = step(COMPUTE, [(0, 1), (0, 0), (1, 1)])
    assert max(x.exchange_s for x in partly.ranks) < max(x.exchange_s for x in alone.ranks)


def test_a_rank_with_tokens_and_no_tiles_and_one_with_tiles_and_no_tokens_are_timed():
    predicted = step(COMPUTE, [(0, 1)])
    assert predicted.ranks[0].attention_s == 0 and predicted.ranks[0].linear_s > 0
    assert predicted.ranks[1].attention_s > 0 and predicted.ranks[1].linear_s == 0
    assert predicted.ranks[1].tokens == 0


def test_memory_counts_state_tokens_and_buffers():
    low = step(COMPUTE, [(0, 0)]).ranks
    cost = CostModel(COMPUTE, MODEL)
    assert low[1].peak_bytes == pytest.approx(cost.memory.state_bytes((0, 0))[1], rel=1e-9)
    assert low[0].peak_bytes - low[1].peak_bytes == pytest.approx(N * cost.memory.token_bytes(), rel=1e-6)
    assert step(COMPUTE, [(0, 1)]).ranks[1].peak_bytes > low[1].peak_bytes


def test_the_bound_of_one_giant_over_slow_nodes_is_above_the_work_alone():
    slow = dataclasses.replace(COMPUTE, nodes=4, ranks_per_node=8, inter_node_bytes_per_s=1e8)
    cost = CostModel(slow, MODEL)
    giant = [Sequence("s", 100_000)]
    batch = make_batch(giant, cost)
    work = float(batch.linear_S[0] + batch.attention_S[0]) / 32 * LAYERS
    assert lower_bound_s(giant, slow.cluster(), cost) > 1.03 * work
    fast = dataclasses.replace(slow, inter_node_bytes_per_s=1e15, intra_node_bytes_per_s=1e15)
    assert lower_bound_s(giant, fast.cluster(), CostModel(fast, MODEL)) == pytest.approx(work, rel=1e-3)


def test_an_efficiency_curve_makes_short_sequences_slower_per_cell():
    curved = dataclasses.replace(COMPUTE, attention_curve=((500.0, 0.5), (2000.0, 1.0)))
    assert step(curved, [(0, 0)]).ranks[0].attention_s > step(COMPUTE, [(0, 0)]).ranks[0].attention_s


def test_the_graph_of_a_cluster_knows_nodes_and_links():
    graph = Cluster.uniform(2, 2, 1 << 30).graph()
    assert graph.number_of_nodes() == 4 and graph.nodes[3]["node"] == 1
    assert graph.edges[0, 1]["span"] == "intra" and graph.edges[1, 2]["span"] == "inter"
