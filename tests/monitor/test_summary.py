"""The tables at the end of a run."""

from __future__ import annotations

import io

from rich.console import Console

from zellige_ray.monitor.history import History
from zellige_ray.monitor.summary import labels, print_summary, shown_figures


def printed(summary: dict[str, object], history: History) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_summary(summary, history, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_shows_load_planned_and_measured_policies_and_figures(history: History) -> None:
    text = printed({"samples_lost": 0, "samples_doubled": 0, "run_folder": "runs/x"}, history)
    assert "120 / 120" in text, "linear of rank 2, planned / measured"
    assert "0.600" in text and "dp" in text
    for label in ("held-out loss fell by", "plan over the lower bound", "faster than dp, measured", "samples lost"):
        assert label in text
    assert "runs/x" in text


def test_a_figure_that_was_not_measured_is_not_shown() -> None:
    assert shown_figures({"heldout_first": None, "steps": 3}) == [("steps", "3")]


def test_a_run_that_never_stepped_still_has_its_figures() -> None:
    assert "samples lost" in printed({"samples_lost": 0}, History())


def test_every_label_formats_a_number() -> None:
    assert all(form.format(1) for _, form in labels.values())
