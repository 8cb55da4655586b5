"""The planner: rounds, memory, speeds, bad input, and the same plan everywhere."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zellige_ray.errors import ConfigError, PlanError
from zellige_ray.placement import (
    Cluster,
    CostModel,
    Sequence,
    load_hardware,
    load_model,
    make_plan,
    plan_to_json,
    policies,
)
from zellige_ray.placement.groups import components
from zellige_ray.placement.hardware import parse_hardware
from zellige_ray.placement.model import parse_model
from zellige_ray.placement.policies import get_policy
from zellige_ray.placement.policies.bags import all_specs, parse_spec, spec_text
from zellige_ray.placement.policies.kk import largest_differencing
from zellige_ray.placement.preset import preset_names
from zellige_ray.placement.workloads import draw_batch, workloads

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"


def batch_of(*lengths: int) -> list[Sequence]:
    return [Sequence(f"s{i}", n) for i, n in enumerate(lengths)]


def test_a_batch_beyond_memory_becomes_rounds_with_every_rank_within_memory(flux32):
    cluster = flux32.hardware.cluster()
    batch = batch_of(*[20000] * 200)
    plan = make_plan(batch, cluster, flux32)
    assert len(plan.rounds) == 2
    assert sorted(i for r in plan.rounds for i in r.ids) == sorted(s.id for s in batch)
    assert all(x.peak_bytes <= cluster.memory_bytes[x.rank] for x in plan.predicted.ranks)


def test_where_memory_is_nearly_full_tokens_are_level(flux32):
    plan = make_plan(draw_batch("wan-tail", 32, 3), flux32.hardware.cluster(), flux32)
    capacity = flux32.memory.token_capacity(flux32.hardware.cluster()).min()
    assert len(plan.rounds) == 1
    assert max(x.tokens for x in plan.predicted.ranks) <= capacity


def test_a_sequence_that_fits_on_no_set_of_ranks_is_named_with_the_bytes(flux32):
    with pytest.raises(PlanError, match=r"sequence s0 \(3000000 tokens\) needs .* GiB .* together have .*raise nodes"):
        make_plan(batch_of(3_000_000), flux32.hardware.cluster(), flux32)


def test_a_model_whose_state_does_not_fit_is_refused():
    hardware = dataclasses.replace(load_hardware("cpu"), memory_bytes=1 << 30)
    with pytest.raises(PlanError, match="parameters, gradients and optimizer need"):
        make_plan(batch_of(10), hardware.cluster(), CostModel(hardware, load_model("flux")))


def test_dp_says_that_a_sequence_is_too_long_for_a_rank(flux32):
    with pytest.raises(PlanError, match=r"policy dp cannot place .* use policy zellige"):
        make_plan(batch_of(120_000), flux32.hardware.cluster(), flux32, "dp")


def test_slow_ranks_get_less_work(flux16):
    speed = (1.0,) * 12 + (0.5,) * 4
    hardware = dataclasses.replace(flux16.hardware, speed=speed)
    cost = CostModel(hardware, flux16.model)
    plan = make_plan(draw_batch("knap-joint", 16, 0), hardware.cluster(), cost)
    assert plan.predicted.gap < 0.06
    busy = [x.linear_s + x.attention_s for x in plan.predicted.ranks]
    assert max(busy) < 1.1 * min(busy)


def test_one_rank_one_head_and_fewer_sequences_than_ranks(flux16):
    tiny = parse_model({**load_model("flux").to_dict(), "heads": 1, "hidden": 64, "layers": 2})
    for size in (1, 2, 5, 8):
        hardware = dataclasses.replace(flux16.hardware, nodes=1, ranks_per_node=size)
        for lengths in ([1], [7, 13], [60001], [5, 5, 5]):
            plan = make_plan(batch_of(*lengths), hardware.cluster(), CostModel(hardware, tiny))
            assert plan.num_sequences == len(lengths)


def test_ranks_with_only_fillers_stay_uncoupled(flux16):
    plan = make_plan(batch_of(30000, *[256] * 400), flux16.hardware.cluster(), flux16)
    groups = components(plan.rounds[0], 16)
    assert max(map(len, groups)) <= 8 and len(groups) > 2


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([Sequence("a", 0)], "sequence 'a' has tokens 0"),
        ([Sequence("a", -5)], "sequence 'a' has tokens -5"),
        ([Sequence("a", 5, -1)], "text_tokens -1"),
        ([Sequence("a", 1.5)], "tokens 1.5"),
        ([Sequence("a", True)], "tokens True"),
        ([Sequence("a", 5), Sequence("b", 6), Sequence("a", 5)], "id 'a' occurs twice"),
        ([], "0 sequences"),
    ],
)
def test_bad_batches_are_refused_with_the_value(flux16, rows, match):
    with pytest.raises(PlanError, match=match):
        make_plan(rows, flux16.hardware.cluster(), flux16)


def test_unknown_names_name_the_nearest():
    with pytest.raises(ConfigError, match="nearest is 'a6000-32'"):
        load_hardware("a600-32")
    with pytest.raises(ConfigError, match="nearest is 'flux'"):
        load_model("flix")
    with pytest.raises(PlanError, match="nearest is 'zellige'"):
        get_policy("zelige")
    with pytest.raises(ConfigError, match="nearest is 'knap-joint'"):
        draw_batch("knap-join", 8, 0)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"nodes": 0}, "nodes must be positive"),
        ({"nodes": 1.5}, "nodes must be a whole number"),
        ({"linear_flops": float("nan")}, "linear_flops must be positive"),
        ({"linear_flops": "fast"}, "linear_flops must be a number"),
        ({"speed": [1.0]}, "speed has 1 values, the profile has 16 ranks"),
        ({"speed": [float("nan")] * 16}, r"speed\[0\] must be positive"),
        ({"speed": 3}, "speed must be a list"),
        ({"state": "zero"}, "state must be one of replicated, fsdp, hsdp"),
        ({"linear_flop": 1}, "unknown key 'linear_flop', the nearest known key is 'linear_flops'"),
        ({"attention_curve": [[5, 1], [1, 1]]}, "must ascend"),
    ],
)
def test_bad_hardware_is_refused_with_key_and_value(change, match):
    with pytest.raises(ConfigError, match=match):
        parse_hardware({**load_hardware("a800-16").to_dict(), **change})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"heads": 0}, "heads must be positive"),
        ({"text": "both"}, "text must be joint or cross"),
        ({"checkpointing": "some"}, "checkpointing must be full or none"),
        ({"kv_heads": 5}, "kv_heads is 5, it must divide heads 24"),
        ({"depth": 3}, "unknown key 'depth'"),
    ],
)
def test_bad_models_are_refused_with_key_and_value(change, match):
    with pytest.raises(ConfigError, match=match):
        parse_model({**load_model("flux").to_dict(), **change})


def test_a_cluster_needs_ranks_and_positive_finite_speeds():
    with pytest.raises(PlanError, match="0 ranks"):
        Cluster((), (), ())
    with pytest.raises(PlanError, match="speed of rank 1 is nan"):
        Cluster((0, 0), (1, 1), (1.0, float("nan")))
    with pytest.raises(PlanError, match="memory of rank 0 is 0"):
        Cluster((0,), (0,), (1.0,))


def test_yaml_numbers_in_any_spelling_are_read(tmp_path):
    text = "\n".join(f"{k}: {v}" for k, v in load_hardware("cpu").to_dict().items())
    (tmp_path / "h.yaml").write_text(text.replace("linear_flops: 50000000000.0", "linear_flops: 50e9"))
    assert load_hardware(tmp_path / "h.yaml").linear_flops == 50e9


def test_every_shipped_preset_plans_a_batch():
    for hardware in map(load_hardware, preset_names("hardware")):
        for model in map(load_model, preset_names("models")):
            if hardware.name == "cpu" and model.name != "dit-xl":
                continue
            plan = make_plan(batch_of(3000, 256, 900), hardware.cluster(), CostModel(hardware, model))
            assert plan.predicted.step_s > 0


def test_every_workload_draws_the_same_lengths_from_the_same_seed():
    for name in workloads:
        one, two, other = draw_batch(name, 16, 1), draw_batch(name, 16, 1), draw_batch(name, 16, 2)
        assert one == two and len(one) >= 8
        assert name == "one-giant" or one != other


def test_bag_specs_read_and_write_and_must_fill_the_cluster():
    assert spec_text(parse_spec("g4n2+g1n8", 32)) == "g1n8+g4n2"
    assert all(sum(g * k for g, k in spec) in (8, 16) for spec in all_specs(16, 24))
    for bad in ("", "g3", "g1n8,g2n4", "g0n4", "g5n1"):
        with pytest.raises(PlanError, match="bag spec"):
            parse_spec(bad, 32)


def test_best_bags_are_no_slower_than_any_spec(flux16):
    batch, cluster = draw_batch("two-point", 16, 1), flux16.hardware.cluster()
    best = make_plan(batch, cluster, flux16, "bags:best").predicted.step_s
    assert best <= min(
        make_plan(batch, cluster, flux16, f"bags:{s}").predicted.step_s for s in ("g1n16", "g4n4", "g8n2")
    )


def test_largest_differencing_balances_and_keeps_everything():
    work = [8.0, 7.0, 6.0, 5.0, 4.0]
    sets = largest_differencing(work, 2)
    assert sorted(j for part in sets for j in part) == [0, 1, 2, 3, 4]
    assert sorted(sum(work[j] for j in part) for part in sets) == [14.0, 16.0]


def test_uneven_cuts_beat_even_degrees_and_static_groups_on_a_mix(flux32):
    batch, cluster = draw_batch("knap-joint", 32, 1), flux32.hardware.cluster()
    steps = {
        p: make_plan(batch, cluster, flux32, p).predicted.step_s
        for p in ("zellige", "even", "bags:g4n8", "pow2", "cp", "kk")
    }
    assert steps["zellige"] == min(steps.values())
    assert steps["even"] > 1.02 * steps["zellige"]


def test_without_overlap_nothing_is_hidden(flux32):
    cost = CostModel(flux32.hardware, flux32.model, overlap=False)
    plan = make_plan(draw_batch("knap-joint", 32, 0), cost.hardware.cluster(), cost)
    assert (
        plan.predicted.gap > make_plan(draw_batch("knap-joint", 32, 0), cost.hardware.cluster(), flux32).predicted.gap
    )


def test_all_policies_are_in_the_visible_dict():
    assert {"zellige", "dp", "cp", "bags", "pow2", "kk", "even"} <= set(policies)


SCRIPT = """
import json, sys
from zellige_ray.placement import CostModel, load_hardware, load_model, make_plan
from zellige_ray.placement.workloads import draw_batch
out = []
for hw, case in (("a800-16", "knap-joint"), ("a6000-32", "hunyuan-tail"), ("a6000-32", "power-law")):
    cost = CostModel(load_hardware(hw), load_model("flux"))
    out.append(make_plan(draw_batch(case, cost.hardware.world_size, 0), cost.hardware.cluster(), cost).hash)
bad = [m for m in ("torch", "ray", "diffusers", "av", "matplotlib", "networkx", "numba", "ortools") if m in sys.modules]
print(json.dumps({"hashes": out, "bad": bad}))
"""


def run_script(seed: str) -> dict:
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_same_plan_in_other_processes_with_other_hash_seeds_without_torch_or_ray(flux16):
    one, two = run_script("1"), run_script("4242")
    assert one == two and one["bad"] == []
    assert one["hashes"][0] == make_plan(draw_batch("knap-joint", 16, 0), flux16.hardware.cluster(), flux16).hash


@pytest.mark.parametrize("name", ["one-anchor", "chain-of-anchors", "only-fillers", "two-nodes"])
def test_golden_plans_have_not_changed(name):
    """Golden plans are small enough to be read. After a wanted change: UPDATE_GOLDEN=1 pytest, then review the diff."""
    cases = {
        "one-anchor": ("h200-8", [60000, 9000, 9000, 6000, *[2000] * 8]),
        "chain-of-anchors": ("h200-8", [50000, 40000, 30000]),
        "only-fillers": ("h200-8", [4000] * 8 + [1000] * 16),
        "two-nodes": ("a800-16", [118800, 256, 256]),
    }
    preset, lengths = cases[name]
    cost = CostModel(load_hardware(preset), load_model("flux"))
    value = plan_to_json(make_plan(batch_of(*lengths), cost.hardware.cluster(), cost))
    del value["predicted"]
    path = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        (only,) = value["rounds"]
        rows = ",\n".join(json.dumps(row) for row in only["sequences"])
        head = json.dumps({k: v for k, v in value.items() if k != "rounds"})[:-1]
        overlap = json.dumps(only.get("overlap"))
        tail = f', "overlap": {overlap}' if "overlap" in only else ""
        path.write_text(f'{head}, "rounds": [{{"sequences": [\n{rows}\n]{tail}}}]}}\n')
    assert json.loads(path.read_text()) == value
