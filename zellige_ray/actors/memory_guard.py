"""The memory guard: what plans may put on each worker, less than it has, and less again where it proved too much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from zellige_ray.actors.messages import Epoch, Member
from zellige_ray.monitor.events import NoteEvent, RankTimes
from zellige_ray.placement import CostModel, Plan
from zellige_ray.placement.blame import heaviest_sequence

STEP_BACK = 0.75  # of what a rank was to hold beside its state when it ran out
MOST_MARGIN = 0.5
SLACK = 0.01  # on top of a measured overshoot
MIB = 1 << 20


class MemoryGuard:
    """margin: share of a worker's memory that plans leave free."""

    def __init__(self, margin: float, notice: Callable[[NoteEvent], None]) -> None:
        self.margin, self._notice = margin, notice
        self._caps: dict[str, int] = {}

    def limits(self, epoch: Epoch) -> tuple[int, ...]:
        """What plans may put on each rank. Units: bytes."""
        return tuple(self._limit(m) for m in epoch.members)

    def see(self, epoch: Epoch, times: Sequence[RankTimes]) -> None:
        """A step was measured; one that took more than a worker has raises the margin, and says so."""
        for member, t in zip(epoch.members, times, strict=True):
            over = (t.peak_bytes - member.memory_bytes) / member.memory_bytes
            if over > 0 and self.margin < MOST_MARGIN:
                self.margin = min(MOST_MARGIN, self.margin + over + SLACK)
                self._warn(
                    f"{member.worker} took {t.peak_bytes / MIB:.0f} MiB of {member.memory_bytes / MIB:.0f} in a step: "
                    f"plans leave {self.margin:.0%} free from now on (placement.memory_margin)"
                )

    def tighten(self, epoch: Epoch, plan: Plan, cost: CostModel, starved: Mapping[str, str]) -> str:
        """Workers ran out of memory on a plan: they get less from now on. Says which sequence weighed most.

        starved: worker -> what its allocator said.
        """
        assert plan.predicted is not None
        state_P, told = cost.memory.state_bytes(epoch.node_of_rank()), []
        for worker, reason in starved.items():
            rank = epoch.workers.index(worker)
            planned = plan.predicted.ranks[rank].peak_bytes
            state = float(state_P[rank])
            self._caps[worker] = int(min(state, planned) + STEP_BACK * max(0.0, planned - state))
            name, num_bytes = heaviest_sequence(plan, rank, cost)
            told.append(
                f"{worker} ran out of memory on {planned / MIB:.0f} MiB planned, {num_bytes / MIB:.0f} of them for "
                f"sequence {name} ({reason}); it gets {self._caps[worker] / MIB:.0f} at most from now on"
            )
        text = "; ".join(told)
        self._warn(text)
        return text

    def _limit(self, member: Member) -> int:
        limit = int(member.memory_bytes * (1 - self.margin))
        return max(1, min(limit, self._caps.get(member.worker, limit)))

    def _warn(self, text: str) -> None:
        self._notice(NoteEvent("warning", text))
