"""Groups on the fly: a bounded pool of real subgroups, one per component, made by their members only.

Why overlapping subgroups can't deadlock: a rank is in exactly one component of a round, so it uses one subgroup at a
time, and the members of a component run the same layers in the same order. What is kept and what leaves is decided from
the sequence of rounds, which all ranks see alike (`admit` gets the components of all ranks, also those without this
one): so two members never disagree on whether their subgroup still exists. Making one is a rendezvous of its members
alone; ranks of other components do not take part and do not wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from zellige_ray.attention.pending import meet
from zellige_ray.attention.transport import Group, backends
from zellige_ray.errors import CommError

Members = tuple[int, ...]


class GroupPool:
    """Subgroups of one epoch by their members; the least recently used leaves first, at most `limit` stay."""

    def __init__(
        self,
        store: Any,
        rank: int,
        backend: str,
        timeout_s: float,
        limit: int,
        cancelled: Callable[[], bool],
        release: Callable[[list[Group]], None],
    ) -> None:
        if limit < 1:
            raise CommError(f"the pool of subgroups needs room for at least 1, got {limit}")
        self._store = store
        self._rank = rank
        self._backend = backend
        self._timeout_s = timeout_s
        self._limit = limit
        self._cancelled = cancelled
        self._release = release
        self._generation: OrderedDict[Members, int] = OrderedDict()  # of the admitted ones, least recently used first
        self._admissions: dict[Members, int] = {}
        self._groups: dict[Members, Group] = {}

    def admit(self, components: Sequence[Members]) -> None:
        """Note the components of a round, in order, on every rank; a round's own components all stay."""
        for members in components:
            if members not in self._generation:
                self._admissions[members] = self._admissions.get(members, 0) + 1
                self._generation[members] = self._admissions[members]
            self._generation.move_to_end(members)
        gone: list[Group] = []
        while len(self._generation) > max(self._limit, len(components)):
            members, _ = self._generation.popitem(last=False)
            if members in self._groups:
                gone.append(self._groups.pop(members))
        if gone:
            self._release(gone)

    def get(self, members: Members) -> Group:
        """The subgroup of an admitted component; made on first use, which waits for all of its members."""
        if members not in self._generation:
            raise CommError(f"ranks {list(members)} are not a component of this round")
        if members not in self._groups:
            from torch.distributed import PrefixStore

            name = f"group/{'-'.join(map(str, members))}/{self._generation[members]}"
            meet(self._store, members, self._rank, name, self._timeout_s, self._cancelled)
            self._groups[members] = backends[self._backend](
                PrefixStore(name, self._store), members.index(self._rank), len(members), self._timeout_s
            )
        return self._groups[members]

    def __len__(self) -> int:
        """Subgroups that this rank holds open."""
        return len(self._groups)

    def drain(self) -> list[Group]:
        """All groups, for release by the caller; the pool is empty after it."""
        groups = list(self._groups.values())
        self._groups.clear()
        self._generation.clear()
        return groups
