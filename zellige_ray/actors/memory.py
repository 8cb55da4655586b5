"""A driver's memory: what it leaves on the disk for one that starts again in its place."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from zellige_ray.actors.messages import Epoch
from zellige_ray.files import write_file
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, StepEvent
from zellige_ray.monitor.metrics import read_events
from zellige_ray.placement import HardwareProfile, load_hardware


@dataclass(frozen=True, slots=True)
class Memory:
    """members, epoch: of the last epoch that was formed, in rank order. history: events of this launch so far.

    silent_s: how long ago the last of them happened. Units: seconds.
    """

    members: tuple[str, ...]
    epoch: int
    history: tuple[Event, ...]
    silent_s: float

    @property
    def steps(self) -> set[int]:
        """Steps that somebody heard of."""
        return {e.step for e in self.history if isinstance(e, StepEvent)}


def write_members(folder: Path, token: str, epoch: Epoch) -> None:
    """Says who is alive, for a person and for the next driver; token: of the launch. Replaces the file at once."""
    members = [
        {"worker": m.worker, "node": m.node, "pid": m.pid, "device": m.device, "memory_bytes": m.memory_bytes}
        for m in epoch.members
    ]
    value = {"launch": token, "driver_pid": os.getpid(), "epoch": epoch.number, "members": members}
    write_file(folder / run_folder.MEMBERS, json.dumps(value, indent=1))


def write_hardware(folder: Path, hardware: HardwareProfile) -> None:
    """Keeps the rates that plans are made with."""
    write_file(folder / run_folder.HARDWARE, yaml.safe_dump(hardware.to_dict(), sort_keys=False))


def read_hardware(folder: Path) -> HardwareProfile | None:
    """The rates that an earlier driver measured; None when it did not come so far."""
    path = folder / run_folder.HARDWARE
    return load_hardware(str(path)) if path.exists() else None


def remember(folder: Path, token: str, events_before: int) -> Memory:
    """The memory of an earlier driver of the launch `token`; no members when it formed no epoch."""
    path = folder / run_folder.METRICS
    lines = list(read_events(path))[events_before:] if path.exists() else []
    silent_s = max(0.0, time.time() - lines[-1][0]) if lines else 0.0
    history = tuple(event for _, event in lines)
    path = folder / run_folder.MEMBERS
    value = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if value.get("launch") != token:
        return Memory((), -1, history, silent_s)
    return Memory(tuple(m["worker"] for m in value["members"]), int(value["epoch"]), history, silent_s)
