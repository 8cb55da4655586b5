"""The page in a real browser: bars move, a killed worker appears, nothing is wrong in the console, nothing leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.monitor.browser import chromium, missing, wait_for, watched
from zellige_ray.monitor.events import MembershipEvent, StepEvent
from zellige_ray.monitor.page.access import Access
from zellige_ray.monitor.page.server import PageServer
from zellige_ray.monitor.page.state import About, PageState
from zellige_ray.monitor.simulation import Simulation

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")]
TOKEN = "a token of the cluster"
BARS = "[...document.querySelectorAll('.bar.measured')].map(e => e.style.background)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as one:
        yield one


class Served:
    """A simulation that goes on as far as a test says."""

    def __init__(self, folder: Path, ranks: int, token: str | None = None, **more: Any) -> None:
        self.simulation = Simulation(folder / "simulation", ranks, **more)
        self._events = self.simulation.events()
        state = PageState(About("simulation", self.simulation.folder, self.simulation.steps, "wan", "zellige"))
        self.server = PageServer(state, Access(token, "127.0.0.1"), self.simulation.model)
        self.url = f"http://127.0.0.1:{self.server.start('127.0.0.1', 0)[1]}/"
        assert self.server.wait_ready(20)

    def until(self, step: int) -> None:
        for event in self._events:
            self.server.see(event)
            if isinstance(event, StepEvent) and event.step == step:
                return

    def until_lost(self) -> MembershipEvent:
        for event in self._events:
            self.server.see(event)
            if isinstance(event, MembershipEvent):
                return event
        raise AssertionError("the simulation has no loss left")


@pytest.mark.parametrize("ranks", [4, 256])
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_bars_move_and_a_killed_worker_appears(
    browser: Any, tmp_path: Path, ranks: int, scheme: str, width: int
) -> None:
    served = Served(tmp_path, ranks, steps=12, lost_at=8)
    try:
        with watched(browser, scheme, width) as seen:
            page = seen.page
            served.until(2)
            page.goto(served.url)
            wait_for(page, "document.querySelector('#figures dd span')?.textContent === '2'")
            assert page.locator(".rank").count() == ranks
            before = page.evaluate(BARS)
            served.until(5)
            wait_for(page, "document.querySelector('#figures dd span').textContent === '5'")
            after = page.evaluate(BARS)
            assert len(after) == ranks and all(a != b for a, b in zip(before, after, strict=True)), "bars move"
            assert "linear" in after[0] and "attention" in after[0]
            page.wait_for_selector("#plan:not([hidden])")
            assert "sequences" in page.get_attribute("#plan", "aria-label")
            assert f"Slowest is rank {ranks // 3} on node-" in page.text_content("#slow")

            lost = served.until_lost()
            page.wait_for_selector("#news:not([hidden])")
            assert lost.worker in page.text_content("#news") and "killed" in page.text_content("#news")
            assert lost.worker in page.text_content("#told .left .what")
            served.until(10)
            wait_for(page, f"document.querySelectorAll('.rank').length === {ranks - 1}")

            over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert over <= 0, f"{over} px wider than a screen of {width}"
            picture(page, f"{ranks}-{scheme}-{width}")
        assert seen.said == []
        assert seen.asked and all(url.startswith((served.url, "data:")) for url in seen.asked), seen.asked
    finally:
        served.server.close()


def test_keyboard_reaches_every_control_and_the_pause_holds_the_page(browser: Any, tmp_path: Path) -> None:
    served = Served(tmp_path, 4, steps=9)
    try:
        with watched(browser) as seen:
            page = seen.page
            served.until(2)
            page.goto(served.url)
            page.wait_for_selector(".rank")
            reached = []
            for _ in range(7):
                page.keyboard.press("Tab")
                reached.append(page.evaluate("(e => e.id || e.className || e.tagName)(document.activeElement)"))
            assert [x for x in reached if x in ("skip", "pause", "order", "load", "SUMMARY")] == [
                "skip", "pause", "order", "load", "SUMMARY",
            ]  # fmt: skip
            page.focus("#pause")
            page.keyboard.press("Enter")
            assert page.get_attribute("#pause", "aria-pressed") == "true"
            served.until(4)
            wait_for(page, "S.now.step === 4")
            page.wait_for_timeout(100)
            assert page.text_content("#figures dd span") == "2"
            page.keyboard.press("Enter")
            wait_for(page, "document.querySelector('#figures dd span').textContent === '4'")
            page.focus("#numbers summary")
            page.keyboard.press("Enter")
            page.wait_for_selector("#numbers tbody tr")
            assert page.locator("#numbers tbody tr").count() == 4
            page.select_option("#order", "busy")
            assert page.locator(".rank .name").first.text_content().startswith("rank 1")
            roles = page.evaluate("[...document.querySelectorAll('svg')].every(e => e.getAttribute('aria-label'))")
            assert roles, "every chart says in words what it shows"
        assert seen.said == []
    finally:
        served.server.close()


def test_with_tokens_the_address_opens_the_page_once_and_shows_no_token_afterwards(
    browser: Any, tmp_path: Path
) -> None:
    served = Served(tmp_path, 4, TOKEN, steps=4)
    try:
        served.until(2)
        with watched(browser) as seen:
            assert seen.page.goto(served.url).status == 401
            assert seen.page.goto(f"{served.url}?token={TOKEN}").status == 200
            seen.page.wait_for_selector(".rank")
            assert "token" not in seen.page.url
            assert seen.page.evaluate("document.cookie") == ""
            assert seen.page.goto(f"{served.url}state.json").status == 200
    finally:
        served.server.close()


def test_the_end_of_a_run_is_shown_as_an_end_and_not_as_a_fault(browser: Any, tmp_path: Path) -> None:
    served = Served(tmp_path, 4, steps=3)
    with watched(browser) as seen:
        served.until(3)
        seen.page.goto(served.url)
        seen.page.wait_for_selector("#link.live")
        served.server.close()
        wait_for(seen.page, "document.querySelector('#link').textContent === 'the run has ended'")
        assert seen.said == []


def picture(page: Any, name: str) -> None:
    """A screenshot for a person, where ZELLIGE_SCREENSHOTS names a folder."""
    folder = os.environ.get("ZELLIGE_SCREENSHOTS")
    if folder:
        page.wait_for_timeout(400)
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)
