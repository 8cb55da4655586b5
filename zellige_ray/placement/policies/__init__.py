"""Policies: who decides where the sequences of a round go. A new one is a file here and a line in this dict."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from zellige_ray.errors import PlanError
from zellige_ray.placement.batch import Batch
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import Round
from zellige_ray.placement.policies.bags import place_bags
from zellige_ray.placement.policies.cp import place_cp
from zellige_ray.placement.policies.dp import place_dp
from zellige_ray.placement.policies.even import place_even_degrees
from zellige_ray.placement.policies.kk import place_kk
from zellige_ray.placement.policies.memory import place_memory
from zellige_ray.placement.policies.pow2 import place_pow2
from zellige_ray.placement.policies.zellige import place_zellige

# The last argument is what follows the colon in a policy's name, such as the spec in `bags:g4n8`, or empty.
Policy = Callable[[Batch, Cluster, CostModel, str], Round]

policies: dict[str, Policy] = {
    "zellige": place_zellige,
    "dp": place_dp,
    "cp": place_cp,
    "bags": place_bags,
    "pow2": place_pow2,
    "kk": place_kk,
    "memory": place_memory,
    "even": place_even_degrees,
}


def get_policy(name: str) -> tuple[Policy, str]:
    """The policy of a name such as `zellige` or `bags:g4n8`, and its argument; raises PlanError naming the nearest."""
    key, _, argument = name.partition(":")
    if key not in policies:
        near = difflib.get_close_matches(key, sorted(policies), n=1, cutoff=0.0)
        raise PlanError(f"policy {name!r} is unknown, the nearest is {near[0]!r}, all: {', '.join(sorted(policies))}")
    return policies[key], argument


__all__ = ["Policy", "get_policy", "policies"]
