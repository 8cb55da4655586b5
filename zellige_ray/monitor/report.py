"""Report: a run folder as one HTML file that needs nothing beside it, light or dark, on a desk or a phone."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from zellige_ray.errors import ConfigError
from zellige_ray.files import write_file
from zellige_ray.monitor import run_folder, sections
from zellige_ray.monitor.events import Event
from zellige_ray.monitor.history import History
from zellige_ray.monitor.metrics import read_events
from zellige_ray.words import counted

# The page may load nothing from anywhere: what is not inside it does not exist.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"


def write_report(folder: Path) -> Path:
    """Writes `report.html` into the run folder from the files there, and returns its path.

    A run that was cut short has fewer files: its report says where nothing was recorded. Raises ConfigError where the
    folder has no metrics at all, or they are not readable.
    """
    metrics = folder / run_folder.METRICS
    if not metrics.is_file():
        raise ConfigError(f"{folder} is not a run folder: it has no {run_folder.METRICS}")
    try:
        timed = list(read_events(metrics))
    except ValueError as fault:
        raise ConfigError(f"cannot report on {folder}: {fault}") from fault
    path = folder / run_folder.REPORT
    write_file(path, render_report(folder, timed))
    return path


def render_report(folder: Path, timed: list[tuple[float, Event]]) -> str:
    """The page as text."""
    history = History()
    for _, event in timed:
        history.see(event)
    config = _yaml(folder / run_folder.CONFIG)
    summary = history.figures() | _json(folder / run_folder.SUMMARY)
    name = str(config.get("name", folder.name))
    parts = [
        ("figures", "The run in figures", "", sections.figures(summary)),
        (
            "loss",
            "Loss",
            "Dotted lines: a worker joined or left, or the run went back; of a step run again, the last value.",
            sections.loss(history),
        ),
        (
            "load",
            "Load per rank",
            "Mean of the last steps: planned above measured, and the share of time that was not spent waiting.",
            sections.load(history),
        ),
        (
            "plans",
            "Plans",
            "Ranks down, time across, one tile per piece of work: whole short sequences muted, cut long ones vivid.",
            sections.plans(history, folder),
        ),
        (
            "time",
            "Seconds per step",
            "The lower bound is all work over the speed of all ranks, without any communication.",
            sections.step_time(history),
        ),
        (
            "policies",
            "Against other policies",
            "Seconds per step on the same batches, interleaved.",
            sections.policies(history),
        ),
        ("previews", "Previews", "Sampled from the model as it was at that step.", sections.previews(history, folder)),
        ("events", "Events", "", sections.events(timed)),
        ("config", "Configuration", "Resolved: every key, also those left at their default.", _pairs(config)),
        ("environment", "Environment", "", _pairs(_json(folder / run_folder.ENVIRONMENT))),
    ]
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _, _ in parts)
    body = "".join(_section(*part) for part in parts)
    style = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
    title = html.escape(name)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}: Zellige run</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{title}</h1>\n<p>{html.escape(_subtitle(history, timed))}</p>\n"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>\n{body}</main>\n'
        "<footer>Written by Zellige on Ray.</footer>\n</body>\n</html>\n"
    )


def _subtitle(history: History, timed: list[tuple[float, Event]]) -> str:
    if not timed:
        return "Nothing was recorded yet."
    start = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(timed[0][0]))
    sizes = [s.world_size for s in history.steps] or [0]
    workers = counted(max(sizes), "worker")
    workers = workers if min(sizes) == max(sizes) else f"{min(sizes)} to {workers}"
    minutes = (timed[-1][0] - timed[0][0]) / 60
    return f"{start}, {minutes:.1f} minutes, {counted(len(history.steps), 'step')} on {workers}"


def _section(key: str, title: str, lead: str, content: str) -> str:
    head = f'<h2 id="{key}-title">{title}</h2>' + (f"<p>{lead}</p>" if lead else "")
    return f'<section id="{key}" aria-labelledby="{key}-title">{head}{content}</section>\n'


def _pairs(value: Mapping[str, Any]) -> str:
    return sections.pairs(_leaves(value))


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted keys, as overrides are written."""
    for key, leaf in value.items():
        if isinstance(leaf, Mapping):
            yield from _leaves(leaf, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", "" if leaf is None else leaf


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _yaml(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))) if path.is_file() else {}
