"""Groups on the fly: a bounded pool of real subgroups, made by their members only.

Overlapping subgroups can't deadlock here: a rank is in exactly one component of a round, so it uses at most one subgroup at
a time, and all members of a subgroup use it in the order of their layers. Making one is a rendezvous of its members alone,
in the order of the rounds that every member sees alike; nobody else takes part.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from zellige_ray.attention.transport import Group, backends
from zellige_ray.errors import CommError


class GroupPool:
    """Subgroups by their members, the least recently used leaves first.

    Members must be the same tuple on all of them. A group that left and comes back gets a new number, so that its
    prefix in the store is fresh; members agree on the number because it is counted in the store.
    """

    def __init__(
        self, store: Any, rank: int, backend: str, timeout_s: float, limit: int, cancelled: Callable[[], bool]
    ) -> None:
        if limit < 1:
            raise CommError(f"the pool of subgroups needs room for at least 1, got {limit}")
        self._store = store
        self._rank = rank
        self._backend = backend
        self._timeout_s = timeout_s
        self._limit = limit
        self._cancelled = cancelled
        self._groups: OrderedDict[tuple[int, ...], Group] = OrderedDict()
        self._visits: dict[tuple[int, ...], int] = {}
        self._retired: list[Group] = []

    def get(self, members: tuple[int, ...]) -> Group:
        """The subgroup of these ranks; made on first use, which waits for all of them."""
        if members in self._groups:
            self._groups.move_to_end(members)
            return self._groups[members]
        if self._rank not in members:
            raise CommError(f"rank {self._rank} is not a member of {members}")
        from torch.distributed import PrefixStore

        from zellige_ray.attention.comm import meet

        visit = self._visits.get(members, 0)
        self._visits[members] = visit + 1
        name = f"group/{'-'.join(map(str, members))}/{visit}"
        meet(self._store, members, self._rank, name, self._timeout_s, self._cancelled)
        while len(self._groups) >= self._limit:
            self._retired.append(self._groups.popitem(last=False)[1])
        group = backends[self._backend](
            PrefixStore(name, self._store), members.index(self._rank), len(members), self._timeout_s
        )
        self._groups[members] = group
        return group

    def __len__(self) -> int:
        return len(self._groups)

    def drain(self) -> list[Group]:
        """All groups, for release by the caller; the pool is empty after it."""
        groups = [*self._groups.values(), *self._retired]
        self._groups.clear()
        self._retired.clear()
        return groups
