"""Forecast: the seconds of a step from measured curves, by simulating every layer on every rank.

The planner's timeline is one formula per round, evaluated thousands of times. This one is evaluated once per plan: each
layer of each pass is played in order, with packing, exchanges in flight behind the fillers of their overlap part,
waiting for each neighbour at both meeting points, and unpacking; then reduction, where all ranks meet, and the update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import FloatArray, Plan, Prediction
from zellige_ray.placement.rank_work import RankWork, RoundWork, count_work
from zellige_ray.placement.step_curves import StepCurves, TokenWork

FADE = (0.5, 0.0454)  # of two ranks' waiting over the gap between them, both in what they wait without a gap
TINY_S = 1e-12


@dataclass(frozen=True, slots=True)
class RankForecast:
    """What one rank does in a step. Units: seconds.

    linear_s: all that is not attention, exchange, reduction or update. exchange_s: packing, waiting and unpacking that
    local attention does not hide. idle_s: from the end of its own work to the end of the reduction. busy_s: processor
    time of the step, waiting left out.
    """

    linear_s: float
    attention_s: float
    exchange_s: float
    idle_s: float
    update_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """step_s: until the last rank has reduced its gradients, the update of the step before included."""

    step_s: float
    ranks: tuple[RankForecast, ...]

    @property
    def exchange_share(self) -> float:
        """Share of the step that the rank with the most exchange spends in it."""
        return max(r.exchange_s for r in self.ranks) / self.step_s


def forecast(plan: Plan, cluster: Cluster, cost: CostModel) -> Forecast:
    """The forecast of a plan. Raises PlanError where the hardware profile has no measured curves."""
    curves = cost.hardware.curves
    if curves is None:
        raise PlanError(f"hardware {cost.hardware.name!r} has no measured curves; make some with `zellige profile`")
    run = _Run(cluster, cost, curves)
    for round_ in plan.rounds:
        joint = cost.model.text == "joint"
        run.round(count_work(round_, cluster.world_size, joint, curves.text_first))
    return run.finish()


def predict_by_curves(plan: Plan, rough: Prediction, cluster: Cluster, cost: CostModel) -> Prediction:
    """The prediction of a plan by its forecast; memory, tokens and the bound are those of the rough one.

    A bound by rates that is above the forecast is no bound: then the forecast is.
    """
    found = forecast(plan, cluster, cost)
    ranks = tuple(
        replace(
            load,
            linear_s=f.linear_s + f.update_s,
            attention_s=f.attention_s,
            exchange_s=f.exchange_s,
            idle_s=f.idle_s,
        )
        for load, f in zip(rough.ranks, found.ranks, strict=True)
    )
    return Prediction(found.step_s, min(rough.lower_bound_s, found.step_s), ranks)


class _Run:
    """Clocks of all ranks, moved forward through a step. Legend: P ranks."""

    def __init__(self, cluster: Cluster, cost: CostModel, curves: StepCurves) -> None:
        self._cost, self._c, self._size = cost, curves, cluster.world_size
        self._speed_P = np.array(cluster.speed)
        node_P = np.array(cluster.node_of_rank)
        self._across_PP = node_P[:, None] != node_P[None, :]
        self._now_P = np.full(self._size, curves.step_s + curves.around_s)
        self._linear_P = np.full(self._size, curves.step_s)
        self._attention_P, self._exchange_P, self._busy_P = (np.zeros(self._size) for _ in range(3))
        self._met_P = self._now_P
        self._row_bytes = cost.model.hidden / cost.model.heads * cost.model.dtype_bytes

    def round(self, work: RoundWork) -> None:
        """Forward and backward of one round."""
        c, ranks = self._c, work.ranks
        layers, full = self._cost.model.layers, self._cost.model.checkpointing == "full"
        self._token_wise(c.round_s + self._tokens(c.load, ranks) + self._tokens(c.outside_forward, ranks))
        ways = _Ways(work, self, c)
        shared_P = np.array([c.shared_s if r.rectangles else 0.0 for r in ranks])
        forward_P, recompute_P, backward_P = (
            self._tokens(work, ranks) + shared_P for work in (c.block_forward, c.block_recompute, c.block_backward)
        )
        for _ in range(layers):
            self._gather()
            self._token_wise(forward_P)
            ways.forward()
        self._token_wise(self._tokens(c.outside_backward, ranks))
        for _ in range(layers):
            self._gather()
            if full:
                self._token_wise(recompute_P)
                ways.forward()
            self._token_wise(backward_P)
            ways.backward()

    def finish(self) -> Forecast:
        """Reduction of all gradients, where all meet; the update of a step is counted with the next, an equal one."""
        c = self._c
        met = min(self._size, c.reduced_by) > 1  # curves of one rank alone know of no reduction, as of no exchange
        reduce_s = c.reduce_s * _ring(self._size) / _ring(c.reduced_by) if met else 0.0
        update_P = c.update(c.parameters) / self._speed_P
        all_PP = ~np.eye(self._size, dtype=np.bool_) & met
        end = float(self._meet(self._now_P + update_P, all_PP).max()) + reduce_s
        idle_P = end - self._now_P - update_P
        busy_P = c.around_s + self._busy_P + self._linear_P + self._attention_P + update_P + reduce_s * c.reduce_cpu
        table = zip(self._linear_P, self._attention_P, self._exchange_P, idle_P, update_P, busy_P, strict=True)
        return Forecast(end, tuple(RankForecast(*map(float, row)) for row in table))

    def _tokens(self, work: TokenWork, ranks: list[RankWork]) -> FloatArray:
        counts = np.array([(r.tokens, r.text, r.pieces) for r in ranks], dtype=np.float64).T
        return np.asarray(work.seconds(*counts))

    def _token_wise(self, seconds_P: FloatArray) -> None:
        seconds_P = seconds_P / self._speed_P
        self._now_P = self._now_P + seconds_P
        self._linear_P = self._linear_P + seconds_P

    def _gather(self) -> None:
        """Sharded state: every layer's parameters come together, and the ranks that share a copy meet."""
        hw, m = self._cost.hardware, self._cost.model
        if hw.state == "replicated" or self._size == 1:
            return
        share_PP = ~self._across_PP if hw.state == "hsdp" else np.ones_like(self._across_PP)
        sharers_P = share_PP.sum(axis=1)
        bytes_P = (4 + 2 * m.mlp_ratio) * m.hidden**2 * m.dtype_bytes * (sharers_P - 1) / sharers_P
        apart_P = (share_PP & self._across_PP).any(axis=1)
        rate_P = np.where(apart_P, hw.inter_node_bytes_per_s, hw.intra_node_bytes_per_s)
        met_P = np.where(share_PP, self._now_P, -np.inf).max(axis=1) + (0.0 if self._c.sharded else bytes_P / rate_P)
        self._exchange_P = self._exchange_P + (met_P - self._now_P)
        self._now_P = met_P

    def attend(self, seconds_P: FloatArray) -> None:
        """Attention that nothing is in flight behind."""
        seconds_P = seconds_P / self._speed_P
        self._now_P = self._now_P + seconds_P
        self._attention_P = self._attention_P + seconds_P

    def exchange(self, leg: _Leg, own_P: FloatArray) -> None:
        """Pack and post, run local attention `own_P`, wait for neighbours and bytes, unpack."""
        own_P, before_P = own_P / self._speed_P, self._now_P
        posted_P = before_P + leg.pack_P / self._speed_P
        met_P = self._meet(posted_P, leg.meets_PP)
        done_P, worked_P = met_P + leg.wire_P, posted_P + own_P
        both_P = np.clip(np.minimum(worked_P, done_P) - met_P, 0.0, None)
        ready_P = np.maximum(worked_P, done_P) + (1 - self._c.hidden) * both_P
        ready_P = np.where(leg.wire_P > 0, ready_P, worked_P)
        self._met_P = np.where(leg.wire_P > 0, ready_P, self._met_P)
        self._now_P = ready_P + leg.unpack_P / self._speed_P
        self._attention_P = self._attention_P + own_P
        self._exchange_P = self._exchange_P + (self._now_P - before_P - own_P)
        self._busy_P = self._busy_P + (leg.pack_P + leg.unpack_P) / self._speed_P + leg.wire_P * self._c.wire_cpu

    def _meet(self, posted_P: FloatArray, meets_PP: np.ndarray) -> FloatArray:
        """When each rank and all of its neighbours have posted.

        Ranks that do the same wait for each other, more the longer ago they last met. The further one is expected
        behind the other, the less of that comes on top: the mean of the later of two normal times (Clark, The Greatest
        of a Finite Set of Random Variables, 1961), which FADE follows to 0.3 % of their deviation.
        """
        apart_P = np.maximum(self._c.wander * np.sqrt(np.maximum(posted_P - self._met_P, 0.0)), TINY_S)
        apart_PP = np.maximum(apart_P[:, None], apart_P[None, :])
        gap_PP = np.abs(posted_P[:, None] - posted_P[None, :]) / apart_PP
        later_PP = np.maximum(posted_P[:, None], posted_P[None, :])
        later_PP = later_PP + apart_PP * np.exp(-(FADE[0] + FADE[1] * gap_PP) * gap_PP)
        return np.asarray(np.maximum(posted_P, np.where(meets_PP, later_PP, -np.inf).max(axis=1)))

    def leg(self, sends_PP: FloatArray, pack_P: FloatArray, unpack_P: FloatArray) -> _Leg:
        """An exchange of these (token, head) rows from rank [row] to rank [column]."""
        bytes_PP = sends_PP * self._row_bytes
        wire_P = np.zeros(self._size)
        for across, work in ((False, self._c.node), (True, self._c.across)):
            part = np.where(self._across_PP == across, bytes_PP, 0.0)
            wire_P = np.maximum(wire_P, work.seconds(part.sum(axis=1), part.sum(axis=0)))
        meets_PP = (bytes_PP + bytes_PP.T) > 0
        wire_P = wire_P + self._c.message_s * np.maximum(meets_PP.sum(axis=1) - 1, 0)
        return _Leg(wire_P, pack_P, unpack_P, meets_PP)


@dataclass(frozen=True, slots=True, eq=False)
class _Leg:
    """One exchange. wire_P: seconds once all neighbours have posted."""

    wire_P: FloatArray
    pack_P: FloatArray
    unpack_P: FloatArray
    meets_PP: np.ndarray


class _Ways:
    """A round's layer, forward and backward."""

    def __init__(self, work: RoundWork, run: _Run, c: StepCurves) -> None:
        self._run = run
        heads = run._cost.model.heads
        ranks = work.ranks
        q_PP, kv_PP = work.q_PP, work.kv_PP
        own_q_P = np.array([float(r.own_q_rows) for r in ranks])
        own_kv_P = np.array([float(r.own_kv_rows) for r in ranks])
        rectangles_P = np.array([float(r.rectangles) for r in ranks])
        in_PP = q_PP + 2 * kv_PP

        def copies(rows_P: FloatArray, rectangles_P: FloatArray) -> FloatArray:
            return np.asarray(c.copies.bytes(rows_P * run._row_bytes) + c.copies.rectangle_s * rectangles_P)

        share = c.copies.call_s / 8  # of four exchanges, each packed and unpacked
        home_in_P, tile_in_P = in_PP.sum(axis=1) + own_q_P + 2 * own_kv_P, in_PP.sum(axis=0) + own_q_P + 2 * own_kv_P
        home_q_P, tile_q_P = q_PP.sum(axis=1) + own_q_P, q_PP.sum(axis=0) + own_q_P
        many_P, few_P = rectangles_P / 2, rectangles_P / 6
        self._in = run.leg(
            in_PP, copies(home_in_P + own_q_P + 2 * own_kv_P, many_P) + share, copies(tile_in_P, many_P) + share
        )
        self._out = run.leg(q_PP.T, copies(tile_q_P + own_q_P, few_P) + share, copies(home_q_P, few_P) + share)
        self._grad_in = run.leg(q_PP, copies(home_q_P + own_q_P, few_P) + share, copies(tile_q_P, few_P) + share)
        self._grads_out = run.leg(
            in_PP.T, copies(tile_in_P + own_q_P + 2 * own_kv_P, many_P) + share, copies(home_in_P, many_P) + share
        )
        self._first = [c.whole.seconds([(heads * k, n, n) for k, n in r.first], len(r.first)) for r in ranks]
        self._second = [c.whole.seconds([(heads * k, n, n) for k, n in r.second], len(r.second)) for r in ranks]
        self._units = [c.units.seconds(r.units, len(r.units)) for r in ranks]
        self._beside_P = np.array([c.attend_s if r.pieces or r.units else 0.0 for r in ranks])
        self._captions = [c.whole.seconds([(heads, q, k) for q, k in r.captions], len(r.captions)) for r in ranks]

    def forward(self) -> None:
        run = self._run
        run.exchange(self._in, _way(self._first, 0))
        run.attend(_way(self._units, 0))
        run.exchange(self._out, _way(self._second, 0))
        run.attend(_way(self._captions, 0) + self._beside_P)

    def backward(self) -> None:
        run = self._run
        run.attend(_way(self._captions, 1) + self._beside_P)
        run.exchange(self._grad_in, _way(self._second, 1))
        run.attend(_way(self._units, 1))
        run.exchange(self._grads_out, _way(self._first, 1))


def _way(times: list[tuple[float, float]], way: int) -> FloatArray:
    return np.array([t[way] for t in times])


def _ring(size: int) -> float:
    """Share of the bytes that an all-reduce sends."""
    return (size - 1) / size
