"""A local profile: what `zellige profile` found on one machine, as values and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zellige_ray.placement.profile_file import Profile
from zellige_ray.words import counted


@dataclass(frozen=True, slots=True)
class LocalProfile:
    """What was measured, the relative speed of each rank, what a person should know, and the file it is in."""

    profile: Profile
    speeds: tuple[float, ...]
    warnings: tuple[str, ...]
    path: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        key, hardware = asdict(self.profile.key), self.profile.hardware.to_dict()
        path = None if self.path is None else str(self.path)
        return {"key": key, "hardware": hardware, "speeds": list(self.speeds), "path": path}

    def describe(self) -> str:
        """The profile, for a person."""
        hw, key = self.profile.hardware, self.profile.key
        lines = [
            f"{key.model} in {key.dtype} on {key.device}",
            f"{counted(key.ranks, 'rank')} of {counted(key.threads, 'thread')}: {hw.linear_flops / 1e9:.1f} GFLOP/s "
            f"token-wise, attention {hw.attention_flops / 1e9:.1f} at its best length",
        ]
        if hw.curves is not None and key.ranks > 1:
            reduce_ms = 1e3 * hw.curves.reduce_s
            lines.append(
                f"exchange {hw.intra_node_bytes_per_s / 1e6:.0f} MB/s and {1e3 * hw.message_latency_s:.2f} ms each, "
                f"{hw.curves.hidden:.0%} hidden behind local work; gradients in {reduce_ms:.0f} ms"
            )
        return "\n".join([*lines, f"written to {self.path}"] if self.path else lines)
