"""A real browser for tests: Debian's chromium, driven by playwright, with all that it says and asks for on record."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def missing() -> str:
    """Why no browser test can run here; empty when one can."""
    if not CHROMIUM.exists():
        return f"{CHROMIUM} is not installed (Debian: apt-get install chromium)"
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (pip install 'zellige-ray[dev]')"
    return ""


@dataclass
class Watched:
    """A page, what its console and its exceptions said, and every address that it asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(browser: Any, scheme: str = "light", width: int = 1280, height: int = 900) -> Iterator[Watched]:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
    context.set_default_timeout(20_000)
    out = Watched(context.new_page())
    out.page.on("console", lambda message: out.said.append(f"{message.type}: {message.text}"))
    out.page.on("pageerror", lambda fault: out.said.append(f"exception: {fault}"))
    out.page.on("request", lambda request: out.asked.append(request.url))
    try:
        yield out
    finally:
        context.close()


def wait_for(page: Any, expression: str, timeout_s: float = 20.0) -> None:
    """Until an expression is true; playwright's own wait evaluates it inside the page, whose policy forbids that."""
    end = time.monotonic() + timeout_s
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"not true within {timeout_s:.0f} s: {expression}"
        page.wait_for_timeout(20)
