"""Properties of every plan, on random clusters, models and batches."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zellige_ray.errors import PlanError
from zellige_ray.placement import (
    Cluster,
    CostModel,
    HardwareProfile,
    ModelPreset,
    Sequence,
    lower_bound_s,
    make_plan,
    plan_from_json,
    plan_to_json,
    validate,
)
from zellige_ray.placement.policies.bags import all_specs, spec_text

QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@st.composite
def costs(draw: st.DrawFn) -> CostModel:
    heads = draw(st.sampled_from([1, 2, 3, 4, 7, 12, 24]))
    kv_heads = draw(st.sampled_from([None, *[k for k in range(1, heads + 1) if heads % k == 0]]))
    hardware = HardwareProfile(
        "h", 1, 1, 1 << 36, 5e10, 2.5e10,
        draw(st.sampled_from([1e7, 1e9, 1e11])), draw(st.sampled_from([1e6, 1e8, 1e10])),
        draw(st.sampled_from([0.0, 1e-5, 1e-2])), state=draw(st.sampled_from(["fsdp", "replicated"])),
    )  # fmt: skip
    text, full = draw(st.sampled_from(["joint", "cross"])), draw(st.sampled_from(["full", "none"]))
    model = ModelPreset("m", draw(st.integers(1, 5)), 16 * heads, heads, 4.0, text, 2, full, kv_heads)
    return CostModel(hardware, model, overlap=draw(st.booleans()))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    nodes = draw(st.lists(st.integers(0, 2), min_size=1, max_size=9))
    speed = draw(st.lists(st.sampled_from([1.0, 0.5, 1.7]), min_size=len(nodes), max_size=len(nodes)))
    if draw(st.booleans()):
        nodes, speed = sorted(nodes), [1.0] * len(nodes)
    return Cluster(tuple(nodes), (1 << 36,) * len(nodes), tuple(speed))


LENGTH = st.one_of(st.integers(1, 9), st.integers(1, 5000), st.integers(1, 60000))
BATCHES = st.lists(st.tuples(LENGTH, st.integers(0, 60)), min_size=1, max_size=40).map(
    lambda rows: tuple(Sequence(f"s{i}", n, t) for i, (n, t) in enumerate(rows))
)


def cells_once(plan, heads: int) -> None:
    """Paints every token and every head x query of small sequences, one by one: nothing twice, nothing missing."""
    for round_ in plan.rounds:
        for k, n in enumerate(round_.tokens_S.tolist()):
            if n > 3000:
                continue
            tokens, grid = np.zeros(n, int), np.zeros((heads, n), int)
            for s in round_.shards():
                if s.sequence == k:
                    tokens[s.start : s.stop] += 1
            for t in round_.tiles():
                if t.sequence == k:
                    grid[t.head_start : t.head_stop, t.query_start : t.query_stop] += 1
            assert (tokens == 1).all() and (grid == 1).all()


@QUIET
@given(BATCHES, clusters(), costs())
def test_a_plan_covers_everything_once_within_memory_above_the_bound(batch, cluster, cost):
    plan = make_plan(batch, cluster, cost)
    validate(plan, batch, cost.model, cluster)
    cells_once(plan, cost.model.heads)
    predicted = plan.predicted
    assert predicted.step_s >= lower_bound_s(batch, cluster, cost) * (1 - 1e-9)
    for x in predicted.ranks:
        assert x.peak_bytes <= cluster.memory_bytes[x.rank]
        total = x.linear_s + x.attention_s + x.exchange_s + x.idle_s
        assert abs(total - predicted.step_s) <= 1e-9 + 1e-6 * predicted.step_s
    assert plan_from_json(plan_to_json(plan)) == plan


@QUIET
@given(BATCHES, clusters(), costs(), st.randoms(use_true_random=False))
def test_the_order_of_sequences_does_not_change_the_plan(batch, cluster, cost, random):
    shuffled = list(batch)
    random.shuffle(shuffled)
    assert make_plan(shuffled, cluster, cost).hash == make_plan(batch, cluster, cost).hash


@QUIET
@given(
    BATCHES,
    clusters(),
    costs(),
    st.sampled_from(["dp", "cp", "cp:cluster", "pow2", "kk", "even", "bags:g1n1", "bags:best"]),
)
def test_every_policy_covers_everything_once(batch, cluster, cost, policy):
    plan = make_plan(batch, cluster, cost, policy)
    validate(plan, batch, cost.model, cluster)
    cells_once(plan, cost.model.heads)


@settings(QUIET, max_examples=25)
@given(BATCHES, st.sampled_from([2, 4, 8]), costs(), st.data())
def test_no_portfolio_member_is_faster(batch, size, cost, data):
    cluster = Cluster.uniform(1, size, 1 << 36)
    ours = make_plan(batch, cluster, cost).predicted.step_s
    spec = spec_text(data.draw(st.sampled_from([s for s in all_specs(size, cost.model.heads) if len(s) == 1])))
    for policy in ("dp", "cp", f"bags:{spec}"):
        assert ours <= make_plan(batch, cluster, cost, policy).predicted.step_s * 1.0025, policy


@QUIET
@given(BATCHES, st.lists(st.sampled_from([0.6, 1.0, 1.5]), min_size=1, max_size=8), st.floats(0.4, 2.0))
def test_short_and_uneven_memory_means_rounds_or_a_named_error(batch, ratios, share):
    hardware = HardwareProfile("h", 1, 1, 1, 5e10, 2.5e10, 1e9, 1e9, 1e-5)
    cost = CostModel(hardware, ModelPreset("m", 30, 384, 12, 4.0, "joint", 2, "full"))
    size, tokens = len(ratios), sum(s.tokens + s.text_tokens for s in batch)
    each = float(cost.memory.state_bytes((0,) * size)[0]) + share * tokens / size * cost.memory.token_bytes()
    cluster = Cluster((0,) * size, tuple(int(each * r) + 1 for r in ratios), (1.0,) * size)
    capacity = float(cost.memory.token_capacity(cluster).sum())
    longest = max(s.tokens + s.text_tokens for s in batch)
    try:
        plan = make_plan(batch, cluster, cost)
    except PlanError as fault:
        least = float(cost.memory.token_capacity(cluster).min())
        assert longest > 0.75 * capacity or least < 8  # what is left for a few tokens is less than their exchange
        assert "GiB" in str(fault)
    else:
        validate(plan, batch, cost.model, cluster)
        assert all(x.peak_bytes <= cluster.memory_bytes[x.rank] for x in plan.predicted.ranks)
