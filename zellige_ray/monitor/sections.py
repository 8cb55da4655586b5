"""Sections: each part of the report as HTML, from the history of a run."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zellige_ray.monitor.bars import phases
from zellige_ray.monitor.charts import Series, chart
from zellige_ray.monitor.events import CheckpointEvent, Event, MembershipEvent, NoteEvent
from zellige_ray.monitor.history import History, Load
from zellige_ray.monitor.plan_pictures import plan_pictures
from zellige_ray.monitor.progress import clock_text, membership_line
from zellige_ray.monitor.summary import shown_figures

NOTHING = '<p class="none">Nothing was recorded.</p>'
MAX_PREVIEWS = 24
MAX_EMBEDDED_BYTES = 2 * 2**20  # of one preview; a larger one stays a file beside the report
media_types = {".png": "image/png", ".jpg": "image/jpeg", ".mp4": "video/mp4", ".webm": "video/webm"}


def figures(summary: Mapping[str, Any]) -> str:
    rows = [f"<div><dt>{_text(label)}</dt><dd>{_text(value)}</dd></div>" for label, value in shown_figures(summary)]
    return f'<dl class="figures">{"".join(rows)}</dl>' if rows else NOTHING


def loss(history: History) -> str:
    steps = tuple(float(s.step) for s in history.steps)
    held_out = tuple(float(e.step) for e in history.held_out)
    losses = [s.loss for s in history.steps]
    series = [
        Series("training loss", steps, tuple(losses), "faint", "thin"),
        Series("smoothed", steps, smoothed(losses), "second"),
        Series("held-out loss", held_out, tuple(e.loss for e in history.held_out), "first", "marked"),
    ]
    title = "Loss over steps"
    if history.held_out:
        title += f": held-out from {history.held_out[0].loss:.4f} to {history.held_out[-1].loss:.4f}"
    return chart("loss", title, series, "loss", _marks(history))


def smoothed(values: Sequence[float], keep: float = 0.9) -> tuple[float, ...]:
    """The exponential mean of the values so far, without the bias of its beginning; NaN and infinities are skipped."""
    out: list[float] = []
    total = weight = 0.0
    for value in values:
        if math.isfinite(value):
            total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        out.append(total / weight if weight else math.nan)
    return tuple(out)


def step_time(history: History) -> str:
    steps = tuple(float(s.step) for s in history.steps)
    series = [
        Series("measured", steps, tuple(s.seconds for s in history.steps), "second"),
        Series("predicted", steps, tuple(s.predicted_s for s in history.steps), "first"),
        Series("lower bound", steps, tuple(s.lower_bound_s for s in history.steps), "third", "dashed"),
    ]
    title = "Seconds per step: measured, predicted by the plan, and the lower bound"
    return chart("time", title, series, "seconds", _marks(history))


def load(history: History) -> str:
    """Bars, planned above measured, and the same as a table."""
    measured = history.measured()
    if not measured:
        return NOTHING
    planned = {x.rank: x for x in history.planned()}
    longest_s = max(x.total_s for x in (*planned.values(), *measured)) or 1.0
    keys = "".join(f'<li><i class="{name}"></i>{name}</li>' for name in phases)
    bars = "".join(_rank(planned.get(x.rank), x, longest_s) for x in measured)
    head = ["rank", "tokens", *(f"{name} {kind}, ms" for name in phases for kind in ("planned", "measured")), "MiB"]
    rows = [_load_row(planned.get(x.rank), x) for x in measured]
    return (
        f'<ul class="legend">{keys}</ul>'
        f'<div class="scroll" tabindex="0" role="group" aria-label="Load bars of all ranks">{bars}</div>'
        f"<details><summary>The same as a table</summary>{_table(head, rows)}</details>"
    )


def plans(history: History, folder: Path) -> str:
    """Mosaics of the plans that are worth a look."""
    pictures = [
        f'<figure class="mosaic"><div class="scroll" tabindex="0" role="group" aria-label="Mosaic">'
        f'<img src="{picture.source}" alt="{html.escape(picture.alt)}"></div>'
        f"<figcaption>{_text(picture.caption)}</figcaption></figure>"
        for picture in plan_pictures(folder, history.steps)
    ]
    return "".join(pictures) or NOTHING


def policies(history: History) -> str:
    comparison = history.comparison
    if comparison is None:
        return NOTHING
    longest_s = max(max(pair) for pair in comparison.policies.values()) or 1.0
    keys = '<li><i class="solid"></i>measured</li><li><i class="solid other"></i>predicted</li>'
    rows = []
    for name, (measured_s, predicted_s) in sorted(comparison.policies.items(), key=lambda item: item[1][0]):
        pair = "".join(
            f"<span>{seconds:.3f} s</span>"
            f'<div class="bar"><i class="{kind}" style="width:{seconds / longest_s:.2%}"></i></div>'
            for seconds, kind in ((measured_s, "solid"), (predicted_s, "solid other"))
        )
        rows.append(f'<div class="rank"><span class="name">{_text(name)}</span><div class="pair">{pair}</div></div>')
    return f'<ul class="legend">{keys}</ul><div class="scroll">{"".join(rows)}</div>'


def events(timed: Sequence[tuple[float, Event]]) -> str:
    """What happened beside the steps, with the time since the first event."""
    start_s = timed[0][0] if timed else 0.0
    lines = []
    for at_s, event in timed:
        told = _told(event)
        if told:
            kind, label, text = told
            clock = f"+{clock_text(at_s - start_s)}"
            lines.append(
                f'<li class="{kind}"><time>{clock}</time><span class="label">{label}</span>'
                f'<span class="what">{_text(text)}</span></li>'
            )
    return f'<ol class="events">{"".join(lines)}</ol>' if lines else NOTHING


def previews(history: History, folder: Path) -> str:
    """The newest previews first, inside the page where they are small, as links where they are not."""
    files = [(e.step, name) for e in reversed(history.previews) for name in e.files]
    shown = [_preview(step, name, folder) for step, name in files[:MAX_PREVIEWS]]
    if not shown:
        return NOTHING
    rest = len(files) - len(shown)
    more = f'<p class="none">{rest} older previews are in the run folder.</p>' if rest else ""
    return f'<div class="previews">{"".join(shown)}</div>{more}'


def pairs(rows: Iterable[tuple[str, Any]]) -> str:
    """A table of names and values."""
    cells = [f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>' for name, value in rows]
    return f'<div class="pairs"><table><tbody>{"".join(cells)}</tbody></table></div>' if cells else NOTHING


def _marks(history: History) -> list[tuple[float, str]]:
    """Membership changes and replays; with many of them the labels would cover the curves, the lines say enough."""
    marks = [(float(e.step), f"{e.worker} {e.change}") for e in history.memberships]
    marks += [(float(behind), f"back from step {furthest}") for behind, furthest in history.replays]
    return marks if len(marks) <= 4 else [(step, "") for step, _ in marks]


def _rank(planned: Load | None, measured: Load, longest_s: float) -> str:
    busy = 1 - measured.idle_s / measured.total_s if measured.total_s > 0 else 0.0
    lines = [("planned", planned), ("measured", measured)]
    pair = "".join(f"<span>{kind}</span>{_bar(x, longest_s)}" for kind, x in lines if x is not None)
    return (
        f'<div class="rank"><span class="name">rank {measured.rank}</span><div class="pair">{pair}</div>'
        f'<span class="busy">{busy:.0%}<span hidden> busy</span></span></div>'
    )


def _bar(x: Load, longest_s: float) -> str:
    spans = [(name, getattr(x, f"{name}_s")) for name in phases]
    told = ", ".join(f"{name} {1e3 * seconds:z.0f} ms" for name, seconds in spans)
    parts = "".join(f'<i class="{name}" style="width:{max(s, 0) / longest_s:.2%}"></i>' for name, s in spans)
    return f'<div class="bar" role="img" aria-label="{told}" title="{told}">{parts}</div>'


def _load_row(planned: Load | None, measured: Load) -> list[str]:
    cells = [str(measured.rank), f"{measured.tokens:,.0f}"]
    for name in phases:
        cells.append("-" if planned is None else f"{1e3 * getattr(planned, f'{name}_s'):z.1f}")
        cells.append(f"{1e3 * getattr(measured, f'{name}_s'):z.1f}")
    return [*cells, f"{measured.memory_bytes / 2**20:,.0f}"]


def _told(event: Event) -> tuple[str, str, str] | None:
    """(css class, label, text) of an event that has no part of the page of its own."""
    match event:
        case CheckpointEvent(step, path, seconds):
            return "checkpoint", "checkpoint", f"step {step}, {Path(path).name}, {seconds:.2f} s"
        case MembershipEvent(change=change):
            return change, change, membership_line(event)
        case NoteEvent(level, text):
            return level, level, text
    return None


def _preview(step: int, name: str, folder: Path) -> str:
    path = folder / name
    caption = f"<figcaption>step {step}, {_text(Path(name).name)}</figcaption>"
    kind = media_types.get(path.suffix.lower())
    if kind is None or not path.is_file() or path.stat().st_size > MAX_EMBEDDED_BYTES:
        return f'<figure><a href="{html.escape(name)}">{_text(Path(name).name)}</a>{caption}</figure>'
    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    if kind.startswith("image/"):
        return f'<figure><img src="{source}" alt="Preview of step {step}">{caption}</figure>'
    return (
        f'<figure><video src="{source}" controls loop muted playsinline autoplay aria-label="Preview of step {step}">'
        f"</video>{caption}</figure>"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col" class="number">{_text(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f'<td class="number">{_text(cell)}</td>' for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide-table"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(value: Any) -> str:
    return html.escape(str(value))
