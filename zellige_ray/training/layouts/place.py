"""Places: which interval of a flat vector a rank holds, from the layout and the nodes of an epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Partition = Callable[[Sequence[int]], tuple[int, ...]]  # node of each rank -> group of each rank


def each_alone(node_of_rank: Sequence[int]) -> tuple[int, ...]:
    """Every rank holds everything."""
    return tuple(range(len(node_of_rank)))


def all_together(node_of_rank: Sequence[int]) -> tuple[int, ...]:
    """All ranks share one copy."""
    return (0,) * len(node_of_rank)


def by_node(node_of_rank: Sequence[int]) -> tuple[int, ...]:
    """The ranks of a node share one copy."""
    return tuple(node_of_rank)


layouts: dict[str, Partition] = {"replicated": each_alone, "fsdp": all_together, "hsdp": by_node}


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place in a layout. node_of_rank: of the epoch, in rank order."""

    layout: str
    node_of_rank: tuple[int, ...] = (0,)
    rank: int = 0

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that share one copy with this one, itself included, ascending."""
        group = layouts[self.layout](self.node_of_rank)
        return tuple(r for r, g in enumerate(group) if g == group[self.rank])

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """All groups, in the order of their first ranks; every rank is in exactly one."""
        group = layouts[self.layout](self.node_of_rank)
        return tuple(tuple(r for r, g in enumerate(group) if g == n) for n in dict.fromkeys(group))

    def of(self, rank: int) -> Place:
        """Another rank's place in the same layout."""
        return Place(self.layout, self.node_of_rank, rank)

    def interval(self, num: int) -> tuple[int, int]:
        """[start, stop) of a vector of `num` elements: equal parts, the last ones shorter or empty."""
        part, index = self.part(num), self.members.index(self.rank)
        return min(num, index * part), min(num, (index + 1) * part)

    def part(self, num: int) -> int:
        """Elements of a part, with what the last one is padded by on the wire."""
        return -(-num // len(self.members))
