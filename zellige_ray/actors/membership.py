"""Membership: which workers live, in which order, under which epoch number; formed anew when one leaves or joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from zellige_ray.actors.messages import Decision, Epoch, Invitation, Member
from zellige_ray.actors.pool import Gathered, Pool
from zellige_ray.config import WorkersConfig
from zellige_ray.errors import PoolError

MAX_FORMINGS = 8


class StateLost(PoolError):  # noqa: N818  (a turn of events, not a fault)
    """Every worker that held the state is gone: the newest checkpoint is what is left. others: live, with no state."""

    def __init__(self, text: str, others: Sequence[Member] = ()) -> None:
        super().__init__(text)
        self.others = tuple(others)


class Rewound(PoolError):  # noqa: N818  (a turn of events, not a fault)
    """A part of the newest state is gone; all live workers hold an older one, of `step`, in the epoch that begins."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the workers together hold step {step} and none after it")
        self.step = step


class Membership:
    """The present epoch, and the only place that changes it."""

    def __init__(
        self,
        pool: Pool,
        settings: WorkersConfig,
        left: Callable[[str, str], None],
        more: Callable[[int], list[Member]],
        formed: Callable[[Epoch], None],
    ) -> None:
        """left: told about each worker that is removed, and why. more: waits until there are so many newcomers.

        formed: told about each epoch that begins.
        """
        self._pool, self._settings, self._left, self._more, self._formed = pool, settings, left, more, formed
        self.epoch = Epoch(-1, ())

    def resume(self, number: int) -> None:
        """Epochs up to `number` are over, whoever formed them."""
        self.epoch = Epoch(number, ())

    def form(self, members: Sequence[Member], decided: Decision, newcomers: Sequence[Member] = ()) -> None:
        """Starts the next epoch with `members`, whose state is equal, and `newcomers`, who take it over.

        Workers that fail while it is formed are removed, and it is formed again without them. With fewer than
        `workers.min` it waits for more. Raises PoolError when they don't come, StateLost when nobody holds the state,
        Rewound when the epoch begins with an older one.
        """
        old, new = list(members), list(newcomers)
        for _ in range(MAX_FORMINGS):
            self.epoch = Epoch(self.epoch.number + 1, tuple(old + new))
            if not old:
                raise StateLost("none of the live workers holds the state", new)
            if self.epoch.size < self._settings.min:
                new += self._more(self._settings.min - self.epoch.size)
                self.epoch = Epoch(self.epoch.number, tuple(old + new))
            epoch = self.epoch
            gathered = self._invite(epoch, decided, epoch.size)
            if gathered.complete:
                self._begin(epoch, decided, {reply.value for reply in gathered.replies.values()})
                return
            gone = self._end(epoch, gathered)
            old = [m for m in old if m.worker not in gone]
            new = [m for m in new if m.worker not in gone]
        raise PoolError(f"no epoch could be formed in {MAX_FORMINGS} attempts: {gathered.why()}")

    def hand_over(
        self, stay: Sequence[Member], decided: Decision, newcomers: Sequence[Member], leaving: Sequence[Member]
    ) -> None:
        """Like `form` with those who stay and newcomers, who first get what those hold who leave."""
        seats = [*stay, *newcomers]
        self.epoch = epoch = Epoch(self.epoch.number + 1, (*seats, *leaving))
        gathered = self._invite(epoch, decided, len(seats))
        gone = set() if gathered.complete else self._end(epoch, gathered)
        whole = gathered.complete and {reply.value for reply in gathered.replies.values()} == {decided.step}
        old = seats if whole else stay
        new = [] if whole else newcomers
        self.form([m for m in old if m.worker not in gone], decided, [m for m in new if m.worker not in gone])

    def break_up(self, call: object, gathered: Gathered, decided: Decision) -> None:
        """Ends the present epoch after a broken call, and forms the next one with the survivors."""
        late = self._cancel_and_wait(call, gathered)
        gone = self._remove({**gathered.lost, **late})
        self.form([m for m in self.epoch.members if m.worker not in gone], decided)

    def _begin(self, epoch: Epoch, decided: Decision, steps: set[int]) -> None:
        """steps: what the members hold, each by its own word; -1 where nobody can piece a state together."""
        if len(steps) > 1 or min(steps) < 0:
            raise StateLost("the live workers together don't hold a whole state", epoch.members)
        self._formed(epoch)
        if steps != {decided.step}:
            raise Rewound(min(steps))

    def _invite(self, epoch: Epoch, decided: Decision, seats: int) -> Gathered:
        nodes, store = epoch.node_of_rank(), self._pool.store(epoch.number)
        invitations = {
            m.worker: (Invitation(epoch.number, rank, nodes, seats, store, decided),)
            for rank, m in enumerate(epoch.members)
        }
        self._call = self._pool.submit("join", invitations)
        return self._pool.gather(self._call, self._settings.comm_timeout_s)

    def _end(self, epoch: Epoch, gathered: Gathered) -> set[str]:
        late = self._cancel_and_wait(self._call, gathered)
        return self._remove({**gathered.lost, **late})

    def _cancel_and_wait(self, call: object, gathered: Gathered) -> Mapping[str, str]:
        """Cancels everybody and waits until each has answered; those who do not in time are lost.

        One that computes answers when it next meets its peers, so the limit is that of a step; one that is silent is
        found by its pings.
        """
        waiting = [w for w in self.epoch.workers if w not in gathered.lost]
        self._pool.cancel(waiting, self.epoch.number + 1)
        rest = self._pool.gather(call, self._settings.step_timeout_s, first_fault=False)
        limit = self._settings.step_timeout_s
        late = {w: f"did not leave epoch {self.epoch.number} in {limit:.0f} s" for w in rest.missing}
        return {**rest.lost, **late}

    def _remove(self, lost: Mapping[str, str]) -> set[str]:
        for worker, reason in lost.items():
            self._pool.remove(worker)
            self._left(worker, reason)
        return set(lost)
