"""Rates: what plans count with, from a named profile, from an earlier driver, or measured on the workers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from zellige_ray.actors.crew import Crew
from zellige_ray.actors.messages import Epoch, Measurement
from zellige_ray.actors.speeds import EVEN, Speeds
from zellige_ray.placement import HardwareProfile, load_hardware

ALONE_BYTES_PER_S = 1e12  # a world of one has no wire; the cost model still wants a rate


def find_rates(named: str | None, known: HardwareProfile | None, crew: Crew) -> tuple[HardwareProfile, Speeds]:
    """The profile and the first speeds. named: a preset, whose speeds stay, so that plans can be repeated.

    known: what an earlier driver of this run measured.
    """
    if named is not None:
        hardware = load_hardware(named)
        return hardware, Speeds(dict(zip(crew.epoch.workers, hardware.speed or (), strict=False)), frozen=True)
    if known is not None:
        return known, Speeds({})
    replies = crew.all("measure", lambda epoch: {w: (epoch.number,) for w in epoch.workers})
    measured = [replies[w].value for w in crew.epoch.workers]
    speeds = dict(zip(crew.epoch.workers, relative_speeds(measured), strict=True))
    return measured_hardware(measured, crew.epoch), Speeds(speeds)


def describe(hardware: HardwareProfile) -> str:
    """The rates, for a person."""
    return (
        f"{hardware.name} rates: {hardware.linear_flops / 1e9:.1f} GFLOP/s linear, "
        f"{hardware.attention_flops / 1e9:.1f} attention, "
        f"{hardware.intra_node_bytes_per_s / 1e6:.0f} MB/s to a neighbour"
    )


def measured_hardware(measured: Sequence[Measurement], epoch: Epoch) -> HardwareProfile:
    """One profile of all ranks: median rates, each rank's speed relative to the median."""
    linear = statistics.median(m.linear_flops for m in measured)
    attention = statistics.median(m.attention_flops for m in measured)
    wires = [m for m in measured if m.bytes_per_s > 0]
    bandwidth = statistics.median(m.bytes_per_s for m in wires) if wires else ALONE_BYTES_PER_S
    latency = statistics.median(m.latency_s for m in wires) if wires else 0.0
    nodes = epoch.node_of_rank()
    return HardwareProfile(
        name="measured",
        nodes=max(nodes) + 1,
        ranks_per_node=-(-epoch.size // (max(nodes) + 1)),
        memory_bytes=min(m.memory_bytes for m in epoch.members),
        linear_flops=linear,
        attention_flops=attention,
        intra_node_bytes_per_s=bandwidth,
        inter_node_bytes_per_s=bandwidth,
        message_latency_s=latency,
        state="replicated",
    )


def relative_speeds(measured: Sequence[Measurement]) -> tuple[float, ...]:
    """Speed of each rank, 1.0 being the median; small differences are noise."""
    middle = statistics.median(m.linear_flops for m in measured)
    ratios = [m.linear_flops / middle for m in measured]
    return tuple(1.0 if abs(r - 1.0) <= EVEN else r for r in ratios)
