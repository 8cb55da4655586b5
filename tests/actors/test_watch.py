"""What the driver's process offers to watchers: a page that is said, `zellige top`, tokens, sinks checked first."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.actors.tiny_data import write_cache
from zellige_ray import cli
from zellige_ray.actors.launch import check
from zellige_ray.actors.prepared import Prepared
from zellige_ray.actors.watch import Watch
from zellige_ray.api import train
from zellige_ray.config import RunConfig, parse_config
from zellige_ray.data.cache import LatentCache
from zellige_ray.errors import ConfigError
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import Event, NoteEvent, PhaseEvent, RatesEvent, StepEvent
from zellige_ray.monitor.page.server import listen


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    return write_cache(tmp_path_factory.mktemp("tiny") / "cache")


def config_of(cache: LatentCache, folder: Path, **changes: Any) -> RunConfig:
    value = {
        "folder": str(folder),
        "steps": 6,
        "evaluate_every": 3,
        "compare_batches": 0,
        "data": {"source": str(cache.folder), "held_out": 2},
        "batch": {"samples": 4},
        "model": {"name": "dit", "layers": 1, "heads": 2, "head_dim": 12},
        "workers": {"count": 2},
        "preview": {"every": None},
        "sinks": [],
        **changes,
    }
    return parse_config(value)


def prepare(cache: LatentCache, folder: Path, **changes: Any) -> Prepared:
    prepared = check(config_of(cache, folder, **changes), lambda event: None)
    prepared.folder.mkdir(parents=True)
    return prepared


def notes(events: list[Event]) -> list[str]:
    return [e.text for e in events if isinstance(e, NoteEvent)]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.dist
def test_the_page_of_a_real_run_is_said_and_shows_its_steps(
    ray_instance: Any, cache: LatentCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[Event] = []
    looks: list[dict[str, Any]] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepEvent) and event.step >= 3 and not looks:
            assert cli.main(["top", str(tmp_path / "latest"), "--once"]) == 0
            assert cli.main(["top", str(tmp_path / "latest"), "--json"]) == 0
            shown, _, text = capsys.readouterr().out.rpartition('{"format"')
            looks.append(json.loads('{"format"' + text))
            assert "loss" in shown and "rank" in shown
            url = json.loads((tmp_path / "latest" / run_folder.PAGE).read_text())["url"]
            with urllib.request.urlopen(f"{url}plan.json", timeout=20) as answer:
                looks.append(json.load(answer))

    config = config_of(cache, tmp_path, steps=16, sinks=["tensorboard", "ray"], page={"port": 0})
    train(config, on_event=on_event)
    (said,) = [text for text in notes(events) if text.startswith("live page: ")]
    assert "ssh -L" in said
    state, plan = looks
    assert plan["ranks"] == [0, 1] and plan["sequence"]
    assert 'class="mosaic"' in (tmp_path / "latest" / run_folder.REPORT).read_text()
    assert 3 <= state["now"]["step"] <= 16
    assert state["loads"]["worker"][0] and min(state["loads"]["limit_bytes"]) > 0
    assert state["now"]["hfu"] is None and state["now"]["flops_per_s"] > 0, "no peak is set"
    assert all(e.flops > 0 for e in events if isinstance(e, StepEvent))
    assert list((tmp_path / "latest" / "tensorboard").iterdir())
    assert not (tmp_path / "latest" / run_folder.PAGE).exists(), "a run that ended has no page"
    assert cli.main(["top", str(tmp_path / "latest")]) == 2
    assert "has no live page: the run has ended" in capsys.readouterr().err


def test_a_port_in_use_gives_the_next_one_and_that_is_said(cache: LatentCache, tmp_path: Path) -> None:
    with closing(listen("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        watch = Watch(prepare(cache, tmp_path, page={"port": port}))
        (said,) = notes(list(watch.open()))
        watch.close()
    assert f"(port {port} is taken)" in said


def test_a_page_that_can_not_be_served_is_a_warning_and_not_the_end(cache: LatentCache, tmp_path: Path) -> None:
    watch = Watch(prepare(cache, tmp_path, page={"host": "203.0.113.9"}))
    (note,) = watch.open()
    assert isinstance(note, NoteEvent) and note.level == "warning" and "page.host" in note.text
    assert watch.see(NoteEvent("info", "the run goes on")) == []
    assert watch.close() == []


def test_no_page_where_it_is_turned_off(cache: LatentCache, tmp_path: Path) -> None:
    watch = Watch(prepare(cache, tmp_path, page={"enabled": False}))
    assert list(watch.open()) == [] and watch.close() == []


@pytest.mark.parametrize(("peak", "flops"), [(None, 0.0), (2e12, 2e12)])
def test_hfu_has_a_peak_only_where_one_is_set(
    cache: LatentCache, tmp_path: Path, peak: float | None, flops: float
) -> None:
    prepared = prepare(cache, tmp_path, page={"enabled": False}, peak_flops=peak)
    hardware = (Path(cli.__file__).parent / "placement/presets/hardware/cpu.yaml").read_text()
    (prepared.folder / run_folder.HARDWARE).write_text(hardware)
    watch = Watch(prepared)
    (rates,) = watch.see(PhaseEvent("profile", 1, 1))
    assert isinstance(rates, RatesEvent) and rates.peak_flops == flops
    watch.close()


def test_a_sink_that_is_not_installed_ends_the_run_before_it_begins(
    cache: LatentCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'zellige-ray\[wandb\]'"):
        check(config_of(cache, tmp_path, sinks=["wandb"]), lambda event: None)
    assert list(tmp_path.iterdir()) == []


def test_with_ray_tokens_on_the_page_and_top_want_the_token(cache: LatentCache, tmp_path: Path) -> None:
    """In a process of its own: Ray reads the mode once."""
    prepared = prepare(cache, tmp_path, page={"port": 0})
    script = f"""
import json, pickle, urllib.error, urllib.request
from pathlib import Path
from zellige_ray import cli
from zellige_ray.actors.watch import Watch
prepared = pickle.loads(Path({str(tmp_path / "prepared.pickle")!r}).read_bytes())
watch = Watch(prepared)
(note,) = watch.open()
print(note.text)
url = json.loads((prepared.folder / "page.json").read_text())["url"]
try:
    urllib.request.urlopen(url + "state.json", timeout=20)
except urllib.error.HTTPError as fault:
    print("without:", fault.code)
print("top:", cli.main(["top", str(prepared.folder), "--once"]))
watch.close()
"""
    (tmp_path / "prepared.pickle").write_bytes(pickle.dumps(prepared))
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
    out = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=Path(cli.__file__).parent.parent, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert "without: 401" in out.stdout and "top: 0" in out.stdout, out.stdout + out.stderr
    assert "add ?token=... once" in out.stdout and env["RAY_AUTH_TOKEN"] not in out.stdout


def test_top_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", str(tmp_path / "nothing")]) == 2
    assert "there is no such run folder" in capsys.readouterr().err
    (tmp_path / run_folder.PAGE).write_text(json.dumps({"url": "http://127.0.0.1:9/", "token": False, "pid": 1}))
    assert cli.main(["top", str(tmp_path)]) == 2
    assert "does not answer" in capsys.readouterr().err
