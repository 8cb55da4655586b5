"""The forecast on a machine with known curves: exact answers, and an error that is planted is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.placement.simulated import simulated_curves, tokens
from zellige_ray.attention.layout import compile_layout
from zellige_ray.attention.tilings import random_round, whole_round
from zellige_ray.errors import ConfigError, PlanError
from zellige_ray.placement import CostModel, HardwareProfile, ModelPreset, Plan, Sequence, make_plan
from zellige_ray.placement.curves import Curve
from zellige_ray.placement.forecast import forecast
from zellige_ray.placement.plan import Round
from zellige_ray.placement.rank_work import count_work
from zellige_ray.placement.step_curves import WireWork

LAYERS, HEADS = 3, 4
MODEL = ModelPreset("m", LAYERS, 128, HEADS, 4.0, "cross", 4, "none")
CURVES = simulated_curves()
HARDWARE = HardwareProfile("simulated", 1, 2, 1 << 40, 1e12, 1e12, 1e9, 1e9, 0.0, state="replicated", curves=CURVES)
UPDATE_S, REDUCE_S = 1e-3, 4e-3


def step(rounds: Round | list[Round], hardware: HardwareProfile = HARDWARE, **model: object) -> float:
    rounds = [rounds] if isinstance(rounds, Round) else rounds
    cost = CostModel(hardware, replace(MODEL, **model))  # type: ignore[arg-type]
    return forecast(Plan(hardware.world_size, tuple(rounds), "hand"), hardware.cluster(), cost).step_s


def local_s(n: int, text: int = 1) -> float:
    """One whole sequence, forward and backward: 3 us a token and 3 ns a cell, of itself and of its caption."""
    return LAYERS * 3 * (1e-6 * n + 1e-9 * HEADS * (n * n + n * text))


def cut(n: int = 1000) -> Round:
    """One sequence at home on rank 0, all of its attention on rank 1."""
    return Round(
        ("s",), np.array([n]), np.array([1]), np.array([[0, 0, 0, n]]), np.array([[0, 1, 0, HEADS, 0, n]])
    )  # fmt: skip


def test_whole_sequences_take_the_busiest_rank_then_reduction_and_update() -> None:
    round_ = whole_round([1000, 500], [0, 1], HEADS, [1, 1])
    assert step(round_) == pytest.approx(local_s(1000) + REDUCE_S + UPDATE_S)


def test_rounds_add_up_and_every_phase_is_told_apart() -> None:
    one, two = whole_round([1000], [0], HEADS, [1]), whole_round([400], [0], HEADS, [1])
    assert step([one, two]) == pytest.approx(local_s(1000) + local_s(400) + REDUCE_S + UPDATE_S)
    cost = CostModel(HARDWARE, MODEL)
    ranks = forecast(Plan(2, (one,), "hand"), HARDWARE.cluster(), cost).ranks
    assert ranks[0].linear_s == pytest.approx(LAYERS * 3e-3)
    assert ranks[0].attention_s == pytest.approx(LAYERS * 3e-9 * HEADS * (1e6 + 1e3))
    assert ranks[1].idle_s == pytest.approx(local_s(1000) + REDUCE_S)
    total = [r.linear_s + r.attention_s + r.exchange_s + r.idle_s + r.update_s for r in ranks]
    assert total == pytest.approx([step(one)] * 2)


def test_ranks_that_share_a_sequence_meet_at_both_exchanges_of_every_layer() -> None:
    n = 1000
    rows_s = n * 128 * 4 * 1e-9  # q, k, v in and o out; grad in, three gradients out
    expected = LAYERS * (3e-6 * n + 3e-9 * HEADS * n * n + 8 * rows_s + 3e-9 * HEADS * n)
    assert step(cut(n)) == pytest.approx(expected + REDUCE_S + UPDATE_S)


def test_what_is_around_a_step_and_each_further_peer_take_what_was_measured() -> None:
    more = replace(HARDWARE, curves=replace(CURVES, around_s=3e-3))
    assert step(cut(), more) == pytest.approx(step(cut()) + 3e-3)

    wide, many = replace(HARDWARE, ranks_per_node=3), replace(CURVES, message_s=2e-4)
    n = 900  # at home on rank 0, heads on ranks 1 and 2: it waits for both twice in a layer
    tiles = [[0, 1, 0, 2, 0, n], [0, 2, 2, HEADS, 0, n]]
    round_ = Round(("s",), np.array([n]), np.array([1]), np.array([[0, 0, 0, n]]), np.array(tiles))
    assert step(cut(), replace(HARDWARE, curves=many)) == step(cut()), "one peer only"
    more_s = step(round_, replace(wide, curves=many)) - step(round_, wide)
    assert more_s == pytest.approx(LAYERS * 2 * 2e-4)


def test_recomputation_repeats_the_forward_pass_and_its_exchanges() -> None:
    full = replace(HARDWARE, curves=replace(CURVES, block_recompute=CURVES.block_forward))
    extra = step(cut(), full, checkpointing="full") - step(cut())
    assert extra == pytest.approx(LAYERS * (1e-3 + 1e-9 * HEADS * (1e6 + 1e3) + 4 * 1000 * 128 * 4 * 1e-9), rel=1e-6)


def with_filler(where: str) -> Round:
    """The cut sequence, and a filler of rank 1 in one overlap part."""
    round_ = Round(
        ("s", "f"), np.array([1000, 800]), np.array([1, 1]), np.array([[0, 0, 0, 1000], [1, 1, 0, 800]]),
        np.array([[0, 1, 0, HEADS, 0, 1000], [1, 1, 0, HEADS, 0, 800]]),
    )  # fmt: skip
    return replace(round_, **{where: ("f",)})


def test_fillers_hide_exchanges_as_far_as_the_machine_lets_them() -> None:
    hidden, open_ = (replace(HARDWARE, curves=replace(CURVES, hidden=h)) for h in (1.0, 0.0))
    assert step(with_filler("first"), hidden) < step(with_filler("first"), open_)
    # backward the parts change places: the second runs during its first exchange, which is the shorter one
    assert step(with_filler("first"), hidden) != step(with_filler("second"), hidden)


def test_links_across_nodes_take_longer() -> None:
    apart = replace(HARDWARE, nodes=2, ranks_per_node=1)
    assert step(cut(), apart) - step(cut()) == pytest.approx(LAYERS * 8 * 1000 * 128 * 4 * 9e-9)


def test_gathers_of_a_sharded_state_make_everybody_meet_in_every_layer() -> None:
    lone = whole_round([1000], [0], HEADS, [1])
    gather_s = 12 * 128**2 * 4 / 2 / 1e9
    assert step(lone, replace(HARDWARE, state="fsdp")) - step(lone) == pytest.approx(2 * LAYERS * gather_s)


def test_a_state_sharded_inside_nodes_meets_there_alone_and_at_their_speed() -> None:
    lone = whole_round([1000], [0], HEADS, [1])
    apart = replace(HARDWARE, nodes=2, ranks_per_node=2, inter_node_bytes_per_s=1e8)
    took = {state: step(lone, replace(apart, state=state)) for state in ("replicated", "hsdp", "fsdp")}  # type: ignore[arg-type]
    within_s, across_s = 12 * 128**2 * 4 / 2 / 1e9, 12 * 128**2 * 4 * 3 / 4 / 1e8
    assert took["hsdp"] - took["replicated"] == pytest.approx(2 * LAYERS * within_s)
    assert took["fsdp"] - took["replicated"] == pytest.approx(2 * LAYERS * across_s)


def test_a_slow_rank_takes_longer_for_the_same() -> None:
    slow = replace(HARDWARE, speed=(0.5, 1.0))
    lone = whole_round([1000], [0], HEADS, [1])
    assert step(lone, slow) == pytest.approx(2 * (local_s(1000) + UPDATE_S) + REDUCE_S)


@pytest.mark.parametrize("part", ["block_forward", "block_backward", "load", "outside_forward", "outside_backward"])
def test_a_planted_error_in_any_curve_shows(part: str) -> None:
    wrong = replace(CURVES, **{part: tokens(0.0, 4e-6)})
    assert step(cut(), replace(HARDWARE, curves=wrong)) > 1.001 * step(cut())


@pytest.mark.parametrize("seed", range(12))
def test_rows_tokens_and_units_are_those_that_the_engine_compiles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 90, 7).tolist()
    round_ = random_round(rng, lengths, 4, HEADS, [3] * 7)
    work = count_work(round_, 4)
    for rank in range(4):
        layout = compile_layout(round_, rank, HEADS)
        t, mine = layout.tables, work.ranks[rank]
        assert (mine.tokens, mine.pieces) == (layout.num_tokens, len(layout.pieces))
        assert {p: int(work.q_PP[rank, p]) for p in t.peers if work.q_PP[rank, p]} == t.q_home
        assert {p: int(work.kv_PP[p, rank]) for p in t.peers if work.kv_PP[p, rank]} == t.kv_tile
        assert (mine.own_q_rows, mine.own_kv_rows) == (t.q_own, t.kv_own)
        assert sum(h * q for h, q, _ in mine.units) == t.unit_q_rows
        assert sorted(n for k, n in [*mine.first, *mine.second] for _ in range(k)) == sorted(layout.whole_lengths)


def test_captions_of_joint_models_are_counted_where_they_lie() -> None:
    round_ = Round(
        ("s",), np.array([100]), np.array([20]), np.array([[0, 0, 0, 30], [0, 1, 30, 100]]),
        np.array([[0, 0, 0, HEADS, 0, 100]]),
    )  # fmt: skip
    first = count_work(round_, 2, joint=True, text_first=True).ranks
    last = count_work(round_, 2, joint=True, text_first=False).ranks
    assert [(r.tokens, r.text) for r in first] == [(10, 20), (70, 0)]
    assert [(r.tokens, r.text) for r in last] == [(30, 0), (50, 20)]


def test_plans_by_curves_carry_the_forecast() -> None:
    cost = CostModel(HARDWARE, MODEL)
    plan = make_plan([Sequence(f"s{i}", 300 + 50 * i, 5) for i in range(6)], HARDWARE.cluster(), cost)
    assert plan.predicted is not None
    assert plan.predicted.step_s == pytest.approx(forecast(plan, HARDWARE.cluster(), cost).step_s)
    assert plan.predicted.gap >= 0


def test_planning_with_curves_sees_what_each_piece_costs_where_flops_do_not() -> None:
    dear = replace(CURVES, block_forward=tokens(0.0, 1e-6, piece_s=5e-3))
    batch = [Sequence("long", 3000, 1), *(Sequence(f"short-{i}", 20, 1) for i in range(30))]
    costs = [CostModel(replace(HARDWARE, curves=c), MODEL) for c in (dear, None)]
    by_curves, by_flops = (make_plan(batch, HARDWARE.cluster(), cost) for cost in costs)
    truth = [forecast(plan, HARDWARE.cluster(), costs[0]).step_s for plan in (by_curves, by_flops)]
    assert truth[0] < truth[1]


def test_ranks_that_wander_share_nothing_where_that_gains_less_than_their_waiting() -> None:
    nervous = replace(HARDWARE, curves=replace(CURVES, wander=0.01))
    batch = [Sequence(f"s{i}", n, 1) for i, n in enumerate((900, 800, 100, 50))]
    whole, cut = (make_plan(batch, HARDWARE.cluster(), CostModel(hw, MODEL)) for hw in (nervous, HARDWARE))
    assert [len(plan.rounds[0].tiles_M6) > len(batch) for plan in (whole, cut)] == [False, True]
    assert step(list(whole.rounds), nervous) < step(list(cut.rounds), nervous)


def test_curves_of_another_model_and_no_curves_are_refused() -> None:
    with pytest.raises(ConfigError, match="measured with hidden 128, model 'm' has 256"):
        CostModel(HARDWARE, replace(MODEL, hidden=256))
    bare = replace(HARDWARE, curves=None)
    with pytest.raises(PlanError, match="no measured curves; make some with `zellige profile`"):
        step(cut(), bare)


def test_equal_ranks_wander_apart_by_the_root_of_their_work_and_unequal_ones_meet_as_before() -> None:
    nervous = replace(HARDWARE, curves=replace(CURVES, wander=0.01))
    equal, apart = (whole_round([1000, n], [0, 1], HEADS, [1, 1]) for n in (1000, 100))
    assert step(equal, nervous) - step(equal) == pytest.approx(0.01 * (local_s(1000) + UPDATE_S) ** 0.5)
    assert 0 <= step(apart, nervous) - step(apart) < 1e-6
    assert 1.0 < step(cut(), nervous) / step(cut()) < 1.1


def test_what_one_rank_measured_alone_plans_for_two_without_exchange_or_reduction() -> None:
    nothing = Curve((0.0,), (0.0,))
    wire = WireWork(nothing, nothing)
    alone = replace(CURVES, reduced_by=1, reduce_s=0.0, node=wire, across=wire)
    assert step(cut(), replace(HARDWARE, curves=alone)) < step(cut())
