"""The slowest rank: who computes the longest, and whether the plan or the machine is the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

EVEN = 0.05  # over the mean: below it nobody is slow
BEHIND = 1.1  # seconds per planned second, over the median of the ranks: from here on a rank is slower than its peers

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slowest:
    """over: its computing time over the mean of the ranks, minus one. reason: one plain sentence.

    cause: `even`: nobody is slow; `machine`: it is slower than its peers; `plan`: it was given more work.
    """

    rank: int
    over: float
    cause: Literal["even", "machine", "plan"]
    reason: str


def slowest(ranks: Sequence[int], planned_R4: FloatArray, measured_R4: FloatArray) -> Slowest | None:
    """The rank that computes the longest; None without ranks.

    Rows are ranks, columns linear, attention, exchange, idle. Units: seconds. Waiting tells nothing about a rank: it
    makes all of them take the same time, so only the time of computing is compared.
    """
    if not len(ranks):
        return None
    busy_R, due_R = measured_R4[:, :2].sum(axis=1), planned_R4[:, :2].sum(axis=1)
    at = int(busy_R.argmax())
    mean_s = float(busy_R.mean())
    over = float(busy_R[at]) / mean_s - 1 if mean_s > 0 else 0.0
    if over < EVEN or len(ranks) == 1:
        return Slowest(ranks[at], over, "even", _even(ranks, measured_R4))
    pace_R = np.divide(busy_R, due_R, out=np.ones_like(busy_R), where=due_R > 0)
    behind = float(pace_R[at] / max(float(np.median(pace_R)), 1e-12))
    if behind >= BEHIND:
        reason = f"it needs {behind:.2f}x as long as its peers for the same work: look at its machine"
        return Slowest(ranks[at], over, "machine", reason)
    extra_P = due_R[at] - due_R.mean() if due_R.mean() > 0 else 0.0
    phase = "attention" if _excess(planned_R4, at, 1) > _excess(planned_R4, at, 0) else "linear work"
    share = f"{extra_P / due_R.mean():.0%}" if due_R.mean() > 0 else "some"
    return Slowest(ranks[at], over, "plan", f"the plan gave it {share} more than the mean, most of it {phase}")


def _excess(planned_R4: FloatArray, at: int, phase: int) -> float:
    return float(planned_R4[at, phase] - planned_R4[:, phase].mean())


def _even(ranks: Sequence[int], measured_R4: FloatArray) -> str:
    total_s = float(measured_R4.sum())
    exchange = float(measured_R4[:, 2].sum()) / total_s if total_s > 0 else 0.0
    text = f"no rank computes more than {EVEN:.0%} longer than the mean" if len(ranks) > 1 else "it is the only one"
    return f"{text}; {exchange:.0%} of all time goes to exchanges" if exchange >= 0.2 else text
