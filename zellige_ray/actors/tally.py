"""The tally: what a run adds up to, and the summary made of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from zellige_ray.data.index import Index
from zellige_ray.data.ledger import verify
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import ComparisonEvent, Event, HeldOutEvent, StepEvent


class Tally:
    """Running figures of this process; the summary's sample counts come from the ledger, which outlives it."""

    def __init__(self) -> None:
        self.steps = self.tokens = self.images = self.videos = 0
        self._gap_sum = self._step_s = 0.0
        self._num_gaps = 0
        self._held_out: tuple[float, float] | None = None  # the first and the last
        self._comparison: ComparisonEvent | None = None
        self._began = time.monotonic()

    def see(self, event: Event) -> None:
        """Takes an event into the account."""
        if isinstance(event, StepEvent):
            self.steps += 1
            self.tokens += event.tokens
            self.images += event.images
            self.videos += event.videos
            self._step_s += event.seconds
            if event.lower_bound_s > 0:
                self._gap_sum += event.predicted_s / event.lower_bound_s - 1
                self._num_gaps += 1
        elif isinstance(event, HeldOutEvent):
            self._held_out = (self._held_out[0] if self._held_out is not None else event.loss, event.loss)
        elif isinstance(event, ComparisonEvent):
            self._comparison = event

    def tokens_left(self, tokens: int, steps_left: int) -> int:
        """Estimate from the mean so far, a step of `tokens` just done included."""
        return steps_left * (self.tokens + tokens) // (self.steps + 1)

    def summary(self, folder: Path, train: Index, replans: int, stopped: bool) -> dict[str, Any]:
        """The figures of `summary.json`. gap_to_bound: mean predicted gap of the plans. Speed-ups: ratios of means."""
        audit = verify(folder / run_folder.LEDGER, train.ids)
        first, last = self._held_out if self._held_out is not None else (None, None)
        out: dict[str, Any] = {
            "run_folder": str(folder),
            "steps": audit.steps,
            "stopped": stopped,
            "heldout_first": first,
            "heldout_last": last,
            "heldout_drop": 1 - last / first if first and last is not None else None,
            "images": self.images,
            "videos": self.videos,
            "samples": audit.samples,
            "samples_lost": audit.samples_lost,
            "samples_doubled": audit.samples_doubled,
            "passes": audit.complete_passes,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens / self._step_s if self._step_s else None,
            "gap_to_bound": self._gap_sum / self._num_gaps if self._num_gaps else None,
            "replans": replans,
            "epochs": audit.epochs,
            "world_sizes": list(audit.world_sizes),
            "seconds": time.monotonic() - self._began,
        }
        return out | self._speedups()

    def _speedups(self) -> dict[str, float]:
        if self._comparison is None:
            return {}
        ours, *rivals = self._comparison.policies.items()
        out = {}
        for name, (measured, predicted) in rivals:
            out[f"speedup_over_{name}"] = measured / ours[1][0]
            out[f"speedup_over_{name}_predicted"] = predicted / ours[1][1]
        return out
