"""Watch a run in a terminal: the figures of its live page, as they come.

zellige top [RUN]             until Ctrl-C, or until the run has ended
zellige top [RUN] --once      one look
zellige top [RUN] --json      the page's whole state as JSON (zellige.page/1)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from zellige_ray.errors import ConfigError
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.bars import load_table
from zellige_ray.monitor.figures import flops_text
from zellige_ray.monitor.history import Load
from zellige_ray.monitor.progress import clock_text

TIMEOUT_S = 10.0
TOLD = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="a run folder (default: the newest in runs/ that has a page)")
    parser.add_argument("--once", action="store_true", help="one look, then the end")
    parser.add_argument("--json", action="store_true", help="the state as one JSON object")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between looks (default: 1)")


def run(args: argparse.Namespace) -> int:
    folder = Path(args.run) if args.run is not None else newest_watched(Path("runs"))
    state = fetch(folder)
    if args.json:
        json.dump(state, sys.stdout)
        sys.stdout.write("\n")
        return 0
    console = Console()
    if args.once or not console.is_terminal:
        console.print(render(state, console.width))
        return 0
    with Live(render(state, console.width), console=console, auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(max(0.1, args.interval))
            try:
                state = fetch(folder)
            except ConfigError:
                break  # the run has ended
            live.update(render(state, console.width), refresh=True)
    console.print(f"the page is gone: the run has ended; zellige report {folder} shows what is left", markup=False)
    return 0


def newest_watched(parent: Path) -> Path:
    """The run whose page was opened last; `latest`, a run from its first step on, where there is none."""
    pages = sorted(parent.glob(f"*/{run_folder.PAGE}"), key=lambda page: page.stat().st_mtime)
    return pages[-1].parent if pages else parent / "latest"


def fetch(folder: Path) -> dict[str, Any]:
    """The state of the page of a run. Raises ConfigError where there is no page, or it does not let us in."""
    path = folder / run_folder.PAGE
    try:
        where = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        why = "the run has ended, or page.enabled is false" if folder.is_dir() else "there is no such run folder"
        raise ConfigError(f"{folder} has no live page: {why}") from fault
    request = urllib.request.Request(f"{where['url']}state.json")
    if where["token"]:
        request.add_header("Authorization", f"Bearer {_token()}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            value: dict[str, Any] = json.load(answer)
            return value
    except urllib.error.HTTPError as fault:
        with fault:
            raise ConfigError(f"the page at {where['url']} says {fault.read().decode().strip()}") from fault
    except OSError as fault:
        hint = "its driver is gone, or runs on another machine: start `zellige top` there"
        raise ConfigError(f"the page at {where['url']} does not answer ({fault}): {hint}") from fault


def render(state: dict[str, Any], width: int) -> RenderableType:
    """The state as text: figures, the slowest rank, bars, what happened last."""
    run_, now = state["run"], state["now"]
    title = Text(f"{run_['name']}  ", style="bold").append(f"{run_['model']}, policy {run_['policy']}", style="dim")
    if now is None:
        phases = [Text(f"{name} {done}/{total}") for name, done, total in state["phases"]]
        return Group(title, *(phases or [Text("preparing", style="dim")]), *_told(state))
    facts = Text()
    for name, value in _facts(state):
        facts.append(f"{name} ", style="dim").append(f"{value}  ", style="bold")
    slow, loads = state["slowest"], state["loads"]
    who = Text("even: ") if slow["cause"] == "even" else Text(f"slowest rank {slow['rank']}, {slow['over']:+.0%}: ")
    bars = load_table(_loads(loads, "planned"), _loads(loads, "measured"), max(8, min(40, (width - 20) // 2)))
    return Group(title, facts, who.append(slow["reason"]), bars, *_told(state))


def _facts(state: dict[str, Any]) -> list[tuple[str, str]]:
    now, held_out = state["now"], state["held_out"]
    rows = [
        ("step", f"{now['step']}/{state['run']['steps']}"),
        ("loss", _form(now["loss"], "{:.4f}")),
        ("held-out", _form(held_out[-1][1] if held_out else None, "{:.4f}")),
        ("tokens/s", _form(now["tokens_per_s"], "{:,.0f}")),
        ("step time", _form(now["seconds"], "{:.3f} s")),
        ("prediction error", _form(now["prediction_error"], "{:+.1%}")),
        ("waiting", _form(now["idle_share"], "{:.0%}")),
        ("HFU", _form(now["hfu"], "{:.1%}")) if now["hfu"] is not None else ("each rank", _rate(now["flops_per_s"])),
        ("workers", str(now["world_size"])),
        ("epoch", str(now["epoch"])),
        ("left", "?" if now["left_s"] is None else clock_text(now["left_s"])),
    ]
    return [(name, value) for name, value in rows if value != "-"]


def _form(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _rate(value: float | None) -> str:
    return "-" if value is None else flops_text(value)


def _loads(loads: dict[str, Any], kind: str) -> list[Load]:
    memory = loads["memory_bytes" if kind == "measured" else "planned_bytes"]
    return [
        Load(rank, four[0] or 0.0, four[1] or 0.0, four[2] or 0.0, four[3] or 0.0, tokens, bytes_ or 0)
        for rank, four, tokens, bytes_ in zip(loads["rank"], loads[kind], loads["tokens"], memory, strict=True)
        if four is not None
    ]


def _told(state: dict[str, Any]) -> list[Text]:
    lines = []
    for event in state["told"][-TOLD:]:
        style = {"left": "red", "warning": "yellow", "joined": "green"}.get(event["kind"], "dim")
        at = time.strftime("%H:%M:%S", time.localtime(event["at_s"]))
        lines.append(Text(f"{at} ", style="dim").append(f"{event['kind']:<10} ", style=style).append(event["text"]))
    return lines


def _token() -> str:
    """The token as Ray looks for it: RAY_AUTH_TOKEN, the file of RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token."""
    given = os.environ.get("RAY_AUTH_TOKEN")
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        return given or path.read_text(encoding="utf-8").strip()
    except OSError as fault:
        raise ConfigError(f"the page wants Ray's token, and {path} can't be read: set RAY_AUTH_TOKEN") from fault
