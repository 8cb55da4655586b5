"""Agreement: all ranks must be about to run the same plan; a split mismatch would abort gloo and hang NCCL."""

from __future__ import annotations

import hashlib

import torch

from zellige_ray.attention.comm import Comm
from zellige_ray.errors import EngineError


def agree(comm: Comm | None, plan_hash: str, *facts: object) -> None:
    """Return when every rank has the same plan hash and facts (heads, dtype, kernel ...); one small all-reduce.

    Raises EngineError on all ranks, naming those that differ from rank 0, before anything of the plan is exchanged.
    """
    if comm is None or comm.size == 1:
        return
    digest = hashlib.sha256(repr((plan_hash, *facts)).encode()).digest()
    mine = int.from_bytes(digest[:7], "big")
    values_R = torch.zeros(comm.size, dtype=torch.int64, device=comm.device)
    values_R[comm.rank] = mine
    values_R = comm.all_reduce(values_R).wait()
    others = [rank for rank, value in enumerate(values_R.tolist()) if value != values_R[0]]
    if others:
        here = f"plan {plan_hash[:12]}" + (f" and {facts}" if facts else "")
        raise EngineError(
            f"ranks {others} are about to run another plan, or other settings, than rank 0; rank {comm.rank} has {here}"
        )
