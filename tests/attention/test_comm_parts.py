"""Flat tensors gathered from equal parts, and summed into them, among some of the ranks."""

from __future__ import annotations

import pytest
import torch

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.errors import CommError, Regroup

pytestmark = pytest.mark.dist
GROUPS = {0: (0, 2, 3), 2: (0, 2, 3), 3: (0, 2, 3), 1: (1,)}


def test_each_member_of_a_group_gets_the_parts_of_all_in_their_order() -> None:
    def body(rank: int, comm: Comm) -> list[float]:
        members = GROUPS[rank]
        whole = torch.full((2 * len(members),), -1.0)
        at = 2 * members.index(rank)
        whole[at : at + 2] = torch.tensor([rank, rank + 0.5])
        return comm.all_gather(whole, members).wait().tolist()

    three = [0.0, 0.5, 2.0, 2.5, 3.0, 3.5]
    assert run_ranks(4, body) == [three, [1.0, 1.5], three, three]


def test_each_member_gets_its_part_of_the_sum_in_the_order_of_the_members() -> None:
    values = {0: 1e16, 1: 5.0, 2: 1.0, 3: -1e16}  # another order would give another sum

    def body(rank: int, comm: Comm) -> list[float]:
        members = GROUPS[rank]
        whole = torch.full((len(members),), values[rank], dtype=torch.float64)
        return comm.reduce_scatter(whole, members).wait().tolist()

    total = (values[0] + values[2]) + values[3]
    assert run_ranks(4, body) == [[total], [5.0], [total], [total]]


def test_what_can_not_be_parted_equally_is_refused() -> None:
    def body(rank: int, comm: Comm) -> str:
        with pytest.raises(CommError, match=r"can't part \(3,\) values equally among the ranks \[0, 1\]"):
            comm.all_gather(torch.zeros(3), (0, 1))
        with pytest.raises(CommError, match=r"rank 0|rank 1"):
            comm.reduce_scatter(torch.zeros(2), (1 - rank,))
        return "refused"

    assert run_ranks(2, body) == ["refused"] * 2


@pytest.mark.parametrize("what", ["all_gather", "reduce_scatter"])
def test_a_member_that_waits_for_another_leaves_when_the_epoch_is_cancelled(what: str) -> None:
    def body(rank: int, comm: Comm) -> str:
        if rank == 1:
            return "stays away"
        pending = getattr(comm, what)(torch.zeros(4), (0, 1))
        comm.cancel()
        with pytest.raises(Regroup):
            pending.wait()
        return "left"

    assert run_ranks(2, body) == ["left", "stays away"]
