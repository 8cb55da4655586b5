"""Planning: from sequences to a validated plan with its prediction, in as many rounds as memory asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch, make_batch
from zellige_ray.placement.bound import batch_bound_s
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.forecast import predict_by_curves
from zellige_ray.placement.overlap import with_overlap
from zellige_ray.placement.plan import Plan
from zellige_ray.placement.policies import get_policy
from zellige_ray.placement.rounds import least_rounds, split_rounds
from zellige_ray.placement.sequence import Sequence
from zellige_ray.placement.timeline import predict, time_round
from zellige_ray.placement.validation import validate_lengths, validate_round

GIB = 1 << 30


def make_plan(
    sequences: Iterable[Sequence], cluster: Cluster, cost: CostModel, policy: str = "zellige", epoch: int = 0
) -> Plan:
    """The plan of a batch: validated, with its prediction.

    Raises PlanError: bad lengths or ids, an unknown policy, a sequence that fits on no set of ranks, or a policy whose
    plans exceed the memory of a rank however many rounds the batch is split into.
    """
    return plan_batch(make_batch(sequences, cost), cluster, cost, policy, epoch)


def plan_batch(batch: Batch, cluster: Cluster, cost: CostModel, policy: str = "zellige", epoch: int = 0) -> Plan:
    """As `make_plan`, from a batch that is checked already.

    Where no number of rounds lets `zellige` fit in memory, policy `memory` takes over, and the plan says so.
    """
    get_policy(policy)
    num, worst = least_rounds(batch, cluster, cost), ""
    bound_s = batch_bound_s(batch, cluster, cost)
    for name in (policy, "memory") if policy == "zellige" else (policy,):
        rounds = num
        while rounds <= len(batch):
            plan, worst = _attempt(batch, cluster, cost, name, rounds, epoch, bound_s)
            if plan is not None:
                return plan
            rounds += max(1, min(rounds // 4, len(batch) - rounds))
    other = "" if policy == "zellige" else ", or use policy zellige"
    raise PlanError(
        f"policy {policy} cannot place the batch within memory, even with one sequence per round (longest "
        f"{batch.ids[0]}, {batch.tokens_S[0]} tokens): {worst}; raise nodes or memory_bytes, set checkpointing: "
        f"full{other}"
    )


def _attempt(
    batch: Batch, cluster: Cluster, cost: CostModel, policy: str, num_rounds: int, epoch: int, bound_s: float
) -> tuple[Plan | None, str]:
    """The plan of a number of rounds, or None and which rank lacks the most memory."""
    place, argument = get_policy(policy)
    rounds = tuple(place(part, cluster, cost, argument) for part in split_rounds(batch, num_rounds))
    for round_ in rounds:
        validate_round(round_, cluster.world_size, cost.model)
    times = [time_round(round_, cluster, cost) for round_ in rounds]
    predicted = predict(times, cluster, cost, bound_s)
    over = [x for x in predicted.ranks if x.peak_bytes > cluster.memory_bytes[x.rank]]
    if over:
        most = max(over, key=lambda x: x.peak_bytes - cluster.memory_bytes[x.rank])
        have = cluster.memory_bytes[most.rank] / GIB
        return None, f"rank {most.rank} needs {most.peak_bytes / GIB:.2f} GiB, it has {have:.2f} GiB"
    rounds = tuple(with_overlap(r, t, cluster, cost) for r, t in zip(rounds, times, strict=True))
    plan = Plan(cluster.world_size, rounds, policy, epoch, predicted)
    if cost.hardware.curves is not None:
        plan = replace(plan, predicted=predict_by_curves(plan, predicted, cluster, cost))
    if not (num_rounds == 1 and rounds[0].ids == batch.ids and (rounds[0].tokens_S == batch.tokens_S).all()):
        validate_lengths(plan, _rows(batch))
    return plan, ""


def _rows(batch: Batch) -> list[tuple[str, int, int]]:
    return sorted(zip(batch.ids, batch.tokens_S.tolist(), batch.text_tokens_S.tolist(), strict=True))


__all__ = ["make_plan", "plan_batch"]
