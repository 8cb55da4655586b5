"""Ranks are profiled as they run: a sharded state gathers blocks and applies its parts, pairs meet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.actors.test_invariance import make_config
from tests.actors.tiny_data import write_cache
from tests.training.layouts.small import SPEC, Case, make_runner
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.placement.step_curves import StepCurves
from zellige_ray.training import profile
from zellige_ray.training.profile_scope import Scope


@pytest.mark.dist
def test_ranks_that_share_a_copy_are_measured_with_the_update_of_their_own_parts(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    cache = write_cache(tmp_path / "cache")
    config, nodes = make_config(cache, 2), (0, 0)

    def body(rank: int, comm: Comm) -> tuple[StepCurves, int]:
        runner = make_runner(cache, Case(checkpointing="full"), "fsdp")
        total = sum(u.num for u in runner.state.layout.units)
        runner.state.settle(comm, nodes, 0)
        return profile.measure(runner, SPEC, config, comm, Scope(200, nodes, 0.2)), total

    (first, total), (second, _) = run_ranks(2, body)
    assert first.sharded and second.sharded
    assert first.parameters + second.parameters == total
    assert 0.45 * total < second.parameters <= first.parameters


@pytest.mark.dist
def test_a_rank_without_a_partner_counts_with_what_the_others_wait_for_each_other(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    cache = write_cache(tmp_path / "cache")
    config, nodes = make_config(cache, 3), (0, 0, 0)

    def body(rank: int, comm: Comm) -> StepCurves:
        runner = make_runner(cache, Case(checkpointing="full"), "replicated")
        runner.state.settle(comm, nodes, 0)
        return profile.measure(runner, SPEC, config, comm, Scope(200, nodes, 0.2))

    first, second, alone = run_ranks(3, body)
    assert alone.wander == max(first.wander, second.wander) > 0
    assert alone.shared_s == max(first.shared_s, second.shared_s)
    assert alone.message_s == max(first.message_s, second.message_s)
