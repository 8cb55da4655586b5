"""A hardware profile: the sustained rates of a cluster, shipped as a preset or measured by a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

from zellige_ray.errors import ConfigError
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.preset import check_keys, positive, positive_int, read_preset
from zellige_ray.placement.step_curves import StepCurves, parse_step_curves

State = Literal["replicated", "fsdp", "hsdp"]
MAX_RANKS = 1 << 17
_RATES = ("linear_flops", "attention_flops", "intra_node_bytes_per_s", "inter_node_bytes_per_s")


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """Sustained rates of one rank, and how ranks hang together.

    Units: FLOP/s, bytes/s of one rank in one direction, bytes, seconds. speed: per rank, relative; None is all equal.
    attention_curve: (sequence length, share of attention_flops reached), ascending; empty is 1 everywhere.
    state: parameters, gradients and optimizer are `replicated`, or sharded over all ranks (`fsdp`) or inside each node
    (`hsdp`). curves: measured seconds of the parts of a step, of one model.
    """

    name: str
    nodes: int
    ranks_per_node: int
    memory_bytes: int
    linear_flops: float
    attention_flops: float
    intra_node_bytes_per_s: float
    inter_node_bytes_per_s: float
    message_latency_s: float
    speed: tuple[float, ...] | None = None
    state: State = "fsdp"
    attention_curve: tuple[tuple[float, float], ...] = ()
    curves: StepCurves | None = None

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def cluster(self) -> Cluster:
        """The cluster of the profile; raises PlanError for speeds that don't fit the ranks or aren't positive."""
        even = Cluster.uniform(self.nodes, self.ranks_per_node, self.memory_bytes)
        return even if self.speed is None else Cluster(even.node_of_rank, even.memory_bytes, self.speed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the YAML form; unset optional fields are left out."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        out = {k: v for k, v in given.items() if v is not None and v != ()}
        if self.speed is not None:
            out["speed"] = list(self.speed)
        if self.attention_curve:
            out["attention_curve"] = [list(point) for point in self.attention_curve]
        if self.curves is not None:
            out["curves"] = self.curves.to_dict()
        return out


def parse_hardware(value: Mapping[str, Any]) -> HardwareProfile:
    """The profile of plain values; raises ConfigError with the key, the value and what it must be."""
    where = f"hardware {value.get('name', '?')!r}"
    required = {"name", "nodes", "ranks_per_node", "memory_bytes", "message_latency_s", *_RATES}
    check_keys(where, value, required, {"speed", "state", "attention_curve", "curves"})
    state = value.get("state", "fsdp")
    if state not in get_args(State):
        raise ConfigError(f"{where}: state must be one of {', '.join(get_args(State))}, got {state!r}")
    latency = value["message_latency_s"]
    nodes = positive_int(where, "nodes", value["nodes"])
    ranks_per_node = positive_int(where, "ranks_per_node", value["ranks_per_node"])
    if nodes * ranks_per_node > MAX_RANKS:
        raise ConfigError(
            f"{where}: nodes x ranks_per_node is {nodes * ranks_per_node} ranks, at most {MAX_RANKS} can be planned"
        )
    return HardwareProfile(
        name=str(value["name"]),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        memory_bytes=positive_int(where, "memory_bytes", value["memory_bytes"]),
        **{key: positive(where, key, value[key]) for key in _RATES},
        message_latency_s=0.0 if latency in (0, 0.0) else positive(where, "message_latency_s", latency),
        speed=_speed(where, value.get("speed"), nodes * ranks_per_node),
        state=cast(State, state),
        attention_curve=_curve(where, value.get("attention_curve", ())),
        curves=parse_step_curves(f"{where}: curves", value["curves"]) if value.get("curves") is not None else None,
    )


def load_hardware(name_or_path: str | Path) -> HardwareProfile:
    """A shipped preset by name, a YAML file or a profile by path; raises ConfigError naming the nearest preset."""
    value = read_preset("hardware", name_or_path)
    if "format" in value:
        from zellige_ray.placement.profile_file import parse_profile  # which reads hardware itself

        del value["name"]
        return parse_profile(str(name_or_path), value).hardware
    return parse_hardware(value)


def _speed(where: str, value: Any, world_size: int) -> tuple[float, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where}: speed must be a list of one number per rank, got {value!r}")
    if len(value) != world_size:
        raise ConfigError(f"{where}: speed has {len(value)} values, the profile has {world_size} ranks")
    return tuple(positive(where, f"speed[{rank}]", x) for rank, x in enumerate(value))


def _curve(where: str, value: Any) -> tuple[tuple[float, float], ...]:
    try:
        points = tuple((positive(where, "attention_curve", a), positive(where, "attention_curve", b)) for a, b in value)
    except (TypeError, ValueError) as fault:
        raise ConfigError(f"{where}: attention_curve must be a list of [length, efficiency], got {value!r}") from fault
    lengths = [a for a, _ in points]
    if lengths != sorted(set(lengths)):
        raise ConfigError(f"{where}: attention_curve must ascend by length, got {lengths}")
    return points
