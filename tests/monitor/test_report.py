"""The report: one file that needs nothing beside it, well-formed, and honest where nothing was recorded."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from zellige_ray.errors import ConfigError
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, MembershipEvent, StepEvent
from zellige_ray.monitor.history import History
from zellige_ray.monitor.metrics import JsonLines
from zellige_ray.monitor.report import write_report
from zellige_ray.monitor.sections import MAX_EMBEDDED_BYTES, loss, smoothed

VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Elements of a page: it raises where a tag is not closed, and counts identifiers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.ids.update(value for name, value in attrs if name == "id" and value)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids.update(value for name, value in attrs if name == "id" and value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def page(folder: Path) -> Page:
    return Page(write_report(folder).read_text())


def test_page_asks_for_nothing_outside_itself(folder: Path) -> None:
    text = write_report(folder).read_text()
    page = Page(text)
    sources = [value for _, name, value in page.attributes if name in ("src", "srcset", "poster")]
    assert sources and all(source.startswith("data:") for source in sources)
    assert not re.search(r"<(script|link|iframe)|@import|url\((?!#)", text)
    assert "default-src 'none'" in text


def test_identifiers_are_unique_and_links_lead_somewhere(page: Page) -> None:
    assert [name for name, count in page.ids.items() if count > 1] == []
    targets = {value[1:] for tag, name, value in page.attributes if tag == "a" and name == "href" and value[0] == "#"}
    assert targets and targets <= set(page.ids)


def test_page_shows_what_happened(page: Page) -> None:
    for piece in (
        "held-out loss fell by",
        "rank 2",
        "w3 left: SIGKILL <b>",
        "the disk has 12 MiB left",
        "zellige",
        "cp",
    ):
        assert piece in page.text, piece
    assert "model.layers" in page.text and "versions.torch" in page.text


def test_everything_drawn_is_also_said(page: Page) -> None:
    pictures = [tag for tag, name, value in page.attributes if name == "role" and value == "img"]
    labels = [value for tag, name, value in page.attributes if name in ("aria-label", "alt")]
    assert len(labels) >= len(pictures) > 0
    assert any("linear 120 ms" in label for label in labels)
    assert ("html", "lang", "en") in page.attributes


def test_colours_follow_the_page_in_light_and_dark(folder: Path) -> None:
    text = write_report(folder).read_text()
    assert "#01f0a" not in text, "a colour that stands for a variable was not replaced"
    used, defined = set(re.findall(r"var\(--([a-z]+)\)", text)), set(re.findall(r"--([a-z]+):", text))
    assert used <= defined
    assert "prefers-color-scheme: dark" in text


def test_plans_are_drawn_and_told(folder: Path, page: Page) -> None:
    pictures = [value for _, name, value in page.attributes if name == "src" and value.startswith("data:image/svg+xml")]
    assert len(pictures) == 2
    told = [value for tag, name, value in page.attributes if tag == "img" and name == "alt" and "Mosaic" in value]
    assert all("a long clip over 4 ranks" in words for words in told)
    assert "Step 5, the last: 7 sequences on 4 ranks, predicted 0.42 s, measured 0.50 s." in page.text


def test_no_plans_or_not_what_they_were_made_with_is_no_fault(folder: Path) -> None:
    (folder / run_folder.HARDWARE).unlink()
    assert "Mosaic" not in write_report(folder).read_text()


def test_previews_are_inside_the_page(folder: Path, page: Page) -> None:
    picture = (folder / "previews/step-000012/coffee.png").read_bytes()
    assert ("img", "src", f"data:image/png;base64,{base64.b64encode(picture).decode()}") in page.attributes
    assert any(
        tag == "video" and name == "src" and value.startswith("data:video/mp4") for tag, name, value in page.attributes
    )


def test_a_large_preview_stays_a_file_and_a_missing_one_is_no_fault(folder: Path) -> None:
    (folder / "previews/step-000012/clip.mp4").write_bytes(b"0" * (MAX_EMBEDDED_BYTES + 1))
    (folder / "previews/step-000012/coffee.png").unlink()
    page = Page(write_report(folder).read_text())
    links = [value for tag, name, value in page.attributes if tag == "a" and name == "href" and value[0] != "#"]
    assert links == ["previews/step-000012/coffee.png", "previews/step-000012/clip.mp4"]


def test_a_run_that_was_cut_short_still_has_a_report(folder: Path) -> None:
    for name in (run_folder.SUMMARY, run_folder.CONFIG, run_folder.ENVIRONMENT):
        (folder / name).unlink()
    (folder / run_folder.METRICS).write_text("")
    text = write_report(folder).read_text()
    assert "Nothing was recorded" in text
    Page(text)


def test_same_run_same_page(folder: Path) -> None:
    assert write_report(folder).read_bytes() == write_report(folder).read_bytes()


def test_what_a_run_says_is_text_not_markup(folder: Path) -> None:
    with JsonLines(folder / run_folder.METRICS) as sink:
        sink.see(MembershipEvent(1, 2, "joined", "<script>alert(1)</script>", "\"&'", 0.0, 0))
    assert "<script>" not in write_report(folder).read_text()


def test_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a run folder: it has no metrics\.jsonl"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_broken_metrics_are_named_and_an_older_report_stays(folder: Path) -> None:
    before = write_report(folder).read_text()
    (folder / run_folder.METRICS).write_text("{}\n")
    with pytest.raises(ConfigError, match="line 1 is not an event"):
        write_report(folder)
    assert (folder / run_folder.REPORT).read_text() == before


def test_smoothed_curve_starts_unbiased_and_steps_over_nan() -> None:
    assert smoothed([2.0, 2.0, math.nan, 2.0]) == pytest.approx((2.0, 2.0, 2.0, 2.0))
    assert smoothed([1.0, 3.0]) == pytest.approx((1.0, (0.09 * 1 + 0.1 * 3) / 0.19))
    assert math.isnan(smoothed([math.nan])[0])


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [360, 1100])
def test_browser_lays_the_page_out_without_sideways_scrolling(folder: Path, tmp_path: Path, width: int) -> None:
    assert BROWSER is not None
    report = write_report(folder)
    probe = tmp_path / "probe.html"
    frame = f"<iframe id=f src='{report.name}' style='width:{width}px;height:900px;border:0'></iframe>"
    script = """
        f.onload = () => {
            const page = f.contentDocument.documentElement;
            const charts = [...page.querySelectorAll(".chart")].filter(chart => chart.offsetHeight).length;
            document.title = JSON.stringify({sideways: page.scrollWidth - page.clientWidth, charts: charts});
        }
    """
    probe.write_text(f"{frame}<script>{script}</script>")
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
    ]  # fmt: skip
    answer = subprocess.run([BROWSER, *flags, probe.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r"<title>(.*?)</title>", answer.stdout)
    assert found, answer.stdout[:500] + answer.stderr[-500:]
    seen = json.loads(found.group(1).replace("&quot;", '"'))
    assert seen == {"sideways": 0, "charts": 2}, "the page fits, and each chart shows one of its two drawings"


def test_a_replay_is_a_mark_and_no_zigzag(events: list[Event]) -> None:
    history = History()
    steps = [e for e in events if isinstance(e, StepEvent)]
    for event in [*steps[:9], *steps[4:]]:
        history.see(event)
    assert [s.step for s in history.steps] == list(range(1, 13))
    assert "back from step 9" in loss(history)
