"""A plan's timeline as a Chrome trace: opens in Perfetto (ui.perfetto.dev) and in chrome://tracing."""

from __future__ import annotations

from typing import Any

from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Plan
from zellige_ray.placement.segments import plan_segments

MICRO = 1e6


def chrome_trace(plan: Plan, cluster: Cluster, cost: CostModel) -> dict[str, Any]:
    """The trace as plain JSON values: a process per node, a thread per rank, an event per segment."""
    segments, ends = plan_segments(plan, cluster, cost)
    events: list[dict[str, Any]] = []
    for node in sorted(set(cluster.node_of_rank)):
        events.append({"ph": "M", "name": "process_name", "pid": node, "args": {"name": f"node {node}"}})
    for rank, node in enumerate(cluster.node_of_rank):
        events.append(
            {"ph": "M", "name": "thread_name", "pid": node, "tid": 2 * rank, "args": {"name": f"rank {rank}"}}
        )
        flight = {"name": f"rank {rank}, data in flight"}
        events.append({"ph": "M", "name": "thread_name", "pid": node, "tid": 2 * rank + 1, "args": flight})
    tokens = {i: n for r in plan.rounds for i, n in zip(r.ids, r.tokens_S.tolist(), strict=True)}
    for s in segments:
        args: dict[str, Any] = {"round": s.round}
        if s.sequence:
            args |= {"sequence": s.sequence, "tokens": tokens[s.sequence], "role": "filler" if s.whole else "anchor"}
        events.append(
            {
                "ph": "X",
                "name": f"{s.kind} {s.sequence}".strip(),
                "cat": s.kind,
                "pid": cluster.node_of_rank[s.rank],
                "tid": 2 * s.rank + (s.kind == "flight"),
                "ts": s.start_s * MICRO,
                "dur": (s.stop_s - s.start_s) * MICRO,
                "args": args,
            }
        )
    other = {"policy": plan.policy, "hash": plan.hash, "rounds": len(ends)}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}
