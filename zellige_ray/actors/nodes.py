"""Nodes: which of them have been told to go, and how an actor is kept where its creator is."""

from __future__ import annotations

import time
from collections.abc import Callable

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

POLL_S = 0.2


def here() -> NodeAffinitySchedulingStrategy:
    """This node, or any other once it is gone."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)


def draining() -> dict[str, int]:
    """Node -> deadline in Unix milliseconds, 0 without one. Ray has no public call for it in 2.60."""
    found: dict[str, int] = ray._private.state.state.get_draining_nodes()
    return found


class Drains:
    """Draining nodes with a reason for a person, asked for at most every POLL_S."""

    def __init__(
        self, read: Callable[[], dict[str, int]] = draining, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._asked = -POLL_S
        self._found: dict[str, str] = {}

    def now(self) -> dict[str, str]:
        """Node -> why its workers leave."""
        if self._clock() - self._asked >= POLL_S:
            self._asked = self._clock()
            self._found = {node: _reason(deadline) for node, deadline in self._read().items()}
        return self._found


def _reason(deadline_ms: int) -> str:
    if deadline_ms <= 0:
        return "its node drains"
    return f"its node drains, {max(0.0, deadline_ms / 1000 - time.time()):.0f} s before it goes"
