"""Names: every metric that Prometheus gets, with its tags; stable, because people build dashboards and alerts on them.

Ray puts `ray_` before a name, and `_total` behind a counter's.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Name(NamedTuple):
    """A metric. tags: beside `run`, the name of the run folder, which all have."""

    kind: Literal["gauge", "counter"]
    tags: tuple[str, ...]
    meaning: str


names: dict[str, Name] = {
    "zellige_rank_seconds": Name(
        "gauge",
        ("rank", "node", "phase", "kind"),
        "Seconds of the last step, by phase (linear, attention, exchange, wait) and kind (planned, measured).",
    ),
    "zellige_rank_tokens": Name("gauge", ("rank", "node"), "Tokens that the rank owned in the last step."),
    "zellige_rank_memory_bytes": Name("gauge", ("rank", "node"), "Resident memory of the rank's process."),
    "zellige_rank_memory_limit_bytes": Name("gauge", (), "What the fullest rank may hold."),
    "zellige_loss": Name("gauge", (), "Training loss of the last step."),
    "zellige_held_out_loss": Name("gauge", (), "Loss on samples that training never sees."),
    "zellige_grad_norm": Name("gauge", (), "Gradient norm of the last step, before clipping."),
    "zellige_learning_rate": Name("gauge", (), "Learning rate of the last step."),
    "zellige_step": Name("gauge", (), "The last committed step."),
    "zellige_pass": Name("gauge", (), "The walk over the data set that is under way, from 0."),
    "zellige_epoch": Name("gauge", (), "Number of the membership; it rises when workers join or leave."),
    "zellige_workers": Name("gauge", (), "Live workers."),
    "zellige_step_seconds": Name(
        "gauge", ("kind",), "Seconds of the last step by kind (measured, predicted, lower_bound, planning)."
    ),
    "zellige_tokens_per_second": Name("gauge", (), "Visual tokens of the last step over its seconds."),
    "zellige_samples_per_second": Name("gauge", (), "Samples of the last step over its seconds."),
    "zellige_prediction_error": Name("gauge", (), "Measured over predicted time of the last step, minus one."),
    "zellige_flops_per_second": Name("gauge", (), "Floating-point operations per second of a rank in the last step."),
    "zellige_hfu": Name("gauge", (), "Hardware FLOP utilization of the last step, 0..1, where `peak_flops` is set."),
    "zellige_steps": Name("counter", (), "Committed steps of this driver process."),
    "zellige_tokens": Name("counter", (), "Visual tokens trained on by this driver process."),
    "zellige_samples": Name("counter", (), "Samples trained on by this driver process."),
    "zellige_membership_changes": Name("counter", ("change",), "Workers that joined or left."),
    "zellige_lost_seconds": Name("counter", (), "Seconds of broken work, after workers left."),
    "zellige_warnings": Name("counter", (), "Warnings of the run."),
}
