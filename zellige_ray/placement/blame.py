"""Blame: which sequence of a plan weighs most on one rank, for when its memory did not suffice."""

from __future__ import annotations

import numpy as np

from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Plan, Round
from zellige_ray.placement.traffic import measure_traffic


def heaviest_sequence(plan: Plan, rank: int, cost: CostModel) -> tuple[str, float]:
    """(id, bytes) of the sequence that takes most of a rank's memory in any round; ties go to the earlier one."""
    found = [(_bytes(r, s, plan.world_size, rank, cost), r.ids[s]) for r in plan.rounds for s in range(len(r.ids))]
    num_bytes, name = max(found, key=lambda x: x[0])
    return name, num_bytes


def _bytes(round_: Round, sequence: int, size: int, rank: int, cost: CostModel) -> float:
    """What the sequence adds to a rank that has nothing else."""
    alone = _only(round_, sequence)
    traffic = measure_traffic(alone, np.zeros(size, dtype=np.int64), cost.model.head_group)
    shards = alone.shards_K4
    tokens_P = np.bincount(shards[:, 1], weights=shards[:, 3] - shards[:, 2], minlength=size).astype(np.int64)
    rows_P = np.maximum(traffic.sent_WSR, traffic.received_WSR).sum(axis=1).max(axis=0)
    return max(0.0, float(cost.memory.work_bytes(alone, traffic, tokens_P, rows_P)[rank]))


def _only(round_: Round, sequence: int) -> Round:
    shards, tiles = (x[x[:, 0] == sequence].copy() for x in (round_.shards_K4, round_.tiles_M6))
    shards[:, 0] = tiles[:, 0] = 0
    one = slice(sequence, sequence + 1)
    return Round(round_.ids[one], round_.tokens_S[one].copy(), round_.text_tokens_S[one].copy(), shards, tiles)
