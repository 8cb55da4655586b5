"""The commit rule: a step counts when every live worker of its epoch has voted for it, and the ledger says so.

Pure values and one small machine, so that every order of deaths, votes and restarts can be tried without a process. The
machine is idle behind a decided step, or votes are open on the next one:

    idle(t) --open--> voting(t+1) --all voted, then in the ledger--> idle(t+1)
                                  --somebody lost or broken--> idle(t)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from zellige_ray.actors.messages import Decision, Epoch, Standing, Vote
from zellige_ray.actors.pool import Gathered
from zellige_ray.errors import PoolError

Verdict = Literal["commit", "drop", "wait"]


@dataclass(slots=True)
class _Ballot:
    step: int
    epoch: int
    members: tuple[str, ...]
    votes: dict[str, Vote] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)


class CommitRule:
    """The only place that moves `decided`."""

    def __init__(self, decided: Decision) -> None:
        self.decided = decided
        self._ballot: _Ballot | None = None

    def open(self, epoch: int, members: Sequence[str]) -> int:
        """Opens the vote on the next step among the members of an epoch; its number. An open vote is dropped."""
        self._ballot = _Ballot(self.decided.step + 1, epoch, tuple(members))
        return self._ballot.step

    def vote(self, worker: str, epoch: int, vote: Vote) -> bool:
        """Takes reduced(t) of a worker; False refuses it: another epoch or step, no member, or lost before."""
        ballot = self._ballot
        if ballot is None or worker not in ballot.members or worker in ballot.lost:
            return False
        if (epoch, vote.step) != (ballot.epoch, ballot.step):
            return False
        ballot.votes[worker] = vote
        return True

    def lose(self, worker: str) -> None:
        """A member is gone, broken or silent: its vote, had it come, does not count, nor can it come any more."""
        if self._ballot is not None:
            self._ballot.lost.add(worker)

    def judge(self, epoch: Epoch, gathered: Gathered) -> bool:
        """Puts what came of a step to the vote: does it count? An answer of no drops it."""
        self.open(epoch.number, epoch.workers)
        for worker, reply in gathered.replies.items():
            if reply.status == "ok":
                self.vote(worker, reply.epoch, reply.value)
            else:
                self.lose(worker)
        for worker in [*gathered.lost, *gathered.missing]:
            self.lose(worker)
        if self.verdict == "commit":
            return True
        self.drop()
        return False

    @property
    def verdict(self) -> Verdict:
        """What the votes say so far. Raises PoolError when ranks voted for different results."""
        ballot = self._ballot
        if ballot is None or ballot.lost & set(ballot.members):
            return "drop"
        if set(ballot.votes) != set(ballot.members):
            return "wait"
        results = {(v.plan_hash, v.finite) for v in ballot.votes.values()}
        if len(results) > 1:
            raise PoolError(f"ranks voted for different results of step {ballot.step}: {sorted(results)}")
        return "commit"

    def commit(self, log: Callable[[int, Vote], None]) -> Decision:
        """Makes the step count: `log` puts it on the disk, then it is decided. What `log` raises changes nothing."""
        ballot = self._ballot
        if ballot is None or self.verdict != "commit":
            raise PoolError(f"step {self.decided.step + 1} can't be committed: {self.verdict}")
        vote = ballot.votes[ballot.members[0]]
        log(ballot.step, vote)
        self.decided, self._ballot = Decision(ballot.step, vote.finite), None
        return self.decided

    def drop(self) -> None:
        """Forgets the open vote; the step will be voted on again."""
        self._ballot = None

    def rewind(self, decided: Decision) -> None:
        """Goes back behind an older step, when nobody is left who holds the newer ones."""
        self.decided, self._ballot = decided, None


@dataclass(frozen=True, slots=True)
class Again:
    """What a driver that starts again decides. commit: the vote on the next step, when it counts after all.

    holders: workers that hold the decided state, or the gradients that lead to it. behind: those that take it over.
    """

    decided: Decision
    commit: Vote | None
    holders: tuple[str, ...]
    behind: tuple[str, ...]


def decide_again(step: int, members: Sequence[str], epoch: int, standings: Mapping[str, Standing]) -> Again:
    """The decision of a driver that knows the last step in the ledger, the last epoch, and what workers say.

    The next step is committed when every member of the last epoch lives and has voted for it; else it is run again.
    """
    vote_of = {w: s.vote for w, s in standings.items() if s.vote is not None}
    finite = [v.finite for v in vote_of.values() if v.step == step]
    able = {w for w, s in standings.items() if s.applied == step or (s.applied == step - 1 and _voted(s, step))}
    complete = bool(members) and all(
        w in able and w in vote_of and standings[w].epoch == epoch and vote_of[w].step == step + 1 for w in members
    )
    same = complete and len({(vote_of[w].plan_hash, vote_of[w].finite) for w in members}) == 1
    order = [*members, *sorted(set(standings) - set(members))]
    return Again(
        decided=Decision(step, all(finite)),
        commit=vote_of[members[0]] if same else None,
        holders=tuple(w for w in order if w in able and standings[w].epoch >= 0),
        behind=tuple(w for w in order if w in standings and (w not in able or standings[w].epoch < 0)),
    )


def _voted(standing: Standing, step: int) -> bool:
    return standing.vote is not None and standing.vote.step == step
