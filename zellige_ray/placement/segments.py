"""Segments: what each rank does when, as the timeline sees a plan; the stuff of pictures and traces."""

from __future__ import annotations

from typing import Literal, NamedTuple

from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Plan, Round
from zellige_ray.placement.timeline import RoundTime, time_round

Kind = Literal["linear", "attention", "exchange", "flight"]


class Segment(NamedTuple):
    """A stretch of one rank's step. Units: seconds of the step, all layers and passes of a phase put together.

    linear: token-wise work of a sequence. attention: of a sequence. exchange: waiting for data. flight: data on the
    way while the rank computes own attention; it overlaps other segments. Between segments the rank is idle.
    whole: is the sequence whole on the rank (a filler). sequence: its id, empty for exchange and flight.
    """

    rank: int
    start_s: float
    stop_s: float
    kind: Kind
    sequence: str
    whole: bool
    round: int


def plan_segments(plan: Plan, cluster: Cluster, cost: CostModel) -> tuple[list[Segment], list[float]]:
    """Segments of all ranks by rank and time, and the end of each round."""
    out: list[Segment] = []
    ends: list[float] = []
    start = 0.0
    for number, round_ in enumerate(plan.rounds):
        time = time_round(round_, cluster, cost)
        out += _round_segments(number, round_, time, cluster, cost, start)
        start += time.layer_s * cost.model.layers
        ends.append(start)
    return sorted(out, key=lambda s: (s.rank, s.round, s.start_s, s.kind == "flight")), ends


def _round_segments(
    number: int, round_: Round, time: RoundTime, cluster: Cluster, cost: CostModel, start: float
) -> list[Segment]:
    layers, speed = cost.model.layers, cluster.speed
    holders: list[set[int]] = [set() for _ in round_.ids]
    linear: list[list[tuple[float, int]]] = [[] for _ in speed]
    attention: list[list[tuple[float, int]]] = [[] for _ in speed]
    token_s = (cost.linear_token_s + cost.cross_token_s * round_.text_tokens_S).tolist()
    for s in round_.shards():
        holders[s.sequence].add(s.rank)
        linear[s.rank].append(((s.stop - s.start) * token_s[s.sequence] * layers / speed[s.rank], s.sequence))
    row_s = (cost.attention_cell_s(round_.tokens_S) * round_.tokens_S).tolist()
    for t in round_.tiles():
        holders[t.sequence].add(t.rank)
        cells = (t.head_stop - t.head_start) * (t.query_stop - t.query_start)
        attention[t.rank].append((cells * row_s[t.sequence] * layers / speed[t.rank], t.sequence))
    whole = [len(ranks) == 1 for ranks in holders]
    meet = {c: float(time.linear_P[time.component_P == c].max()) * layers for c in set(time.component_P.tolist())}
    out: list[Segment] = []
    for rank in range(len(speed)):
        at = start
        for seconds, j in sorted(linear[rank], key=lambda x: (whole[x[1]], x[1])):
            out.append(Segment(rank, at, at + seconds, "linear", round_.ids[j], whole[j], number))
            at += seconds
        at = start + meet[int(time.component_P[rank])]
        if time.wait_P[rank] > 0:
            out.append(Segment(rank, at, at + float(time.wait_P[rank]) * layers, "flight", "", False, number))
        for seconds, j in sorted((x for x in attention[rank] if whole[x[1]]), key=lambda x: x[1]):
            out.append(Segment(rank, at, at + seconds, "attention", round_.ids[j], True, number))
            at += seconds
        if time.exposed_P[rank] > 0:
            stop = at + float(time.exposed_P[rank]) * layers
            out.append(Segment(rank, at, stop, "exchange", "", False, number))
            at = stop
        for seconds, j in sorted((x for x in attention[rank] if not whole[x[1]]), key=lambda x: x[1]):
            out.append(Segment(rank, at, at + seconds, "attention", round_.ids[j], False, number))
            at += seconds
    return out
