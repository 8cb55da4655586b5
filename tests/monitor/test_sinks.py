"""Sinks: each keeps every number at its step, none holds training up, none takes a run down."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from zellige_ray.config import SinkName
from zellige_ray.data.media import write_png
from zellige_ray.errors import ConfigError
from zellige_ray.monitor.events import Event, HeldOutEvent, PreviewEvent, StepEvent
from zellige_ray.monitor.simulation import Simulation
from zellige_ray.monitor.sinks import Sink, SinkRun, check_sinks, sinks
from zellige_ray.monitor.sinks import feed as feeds
from zellige_ray.monitor.sinks.feed import Feed
from zellige_ray.monitor.sinks.names import names
from zellige_ray.monitor.sinks.scalars import Scalars

STEPS = 12


def needs(name: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed (pip install 'zellige-ray[{name}]')")


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self, run: SinkRun) -> None:
        self.events: list[Event] = []
        self.closed = False
        kept.append(self)

    def write(self, events: Sequence[Event]) -> None:
        self.events += events

    def close(self) -> None:
        self.closed = True


kept: list[Kept] = []


@pytest.fixture
def simulation(tmp_path: Path) -> Simulation:
    kept.clear()
    return Simulation(tmp_path / "simulation-1", 4, steps=STEPS)


@pytest.fixture
def run(simulation: Simulation) -> SinkRun:
    return SinkRun("simulation", simulation.folder, {"steps": STEPS, "model": {"name": "wan"}})


def written(run: SinkRun, simulation: Simulation, name: str) -> list[tuple[int, dict[str, float]]]:
    """Sends a whole run to one sink; what it should have kept."""
    events = list(simulation.events())
    feed = Feed(run, {name: sinks[name]}, interval_s=0.01)
    for event in events:
        feed.see(event)
    feed.close(60.0)
    assert feed.warnings() == []
    return list(Scalars().of(events))


def curve(rows: list[tuple[int, dict[str, float]]], name: str) -> list[tuple[int, float]]:
    return [(step, values[name]) for step, values in rows if name in values]


def test_every_sink_of_the_configuration_is_there() -> None:
    assert set(sinks) == set(get_args(SinkName))


def test_a_sink_that_is_not_installed_is_named_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sinks(["ray"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'zellige-ray\[wandb\]'"):
        check_sinks(["wandb"])


def test_numbers_of_a_step_have_stable_names(simulation: Simulation) -> None:
    rows = list(Scalars().of(simulation.events()))
    step, values = next(row for row in rows if "loss/train" in row[1])
    assert step == 1
    assert sorted(values) == [
        "loss/train", "optimizer/grad_norm", "optimizer/lr", "ranks/idle_share", "ranks/imbalance",
        "ranks/memory_bytes_max", "rate/flops_per_s", "rate/hfu", "rate/samples_per_s", "rate/tokens_per_s",
        "run/epoch", "run/workers", "step/lower_bound_s", "step/plan_s", "step/predicted_s",
        "step/prediction_error", "step/seconds",
    ]  # fmt: skip
    assert 1.2 < values["ranks/imbalance"] < 1.4, "one rank of the simulation is slow"


def test_feed_gives_every_event_in_order_and_closes(run: SinkRun, simulation: Simulation) -> None:
    feed = Feed(run, {"kept": Kept}, interval_s=0.001)
    events = list(simulation.events())
    for event in events:
        feed.see(event)
        time.sleep(0.001)
    feed.close()
    assert kept[0].events == events and kept[0].closed and feed.warnings() == []


def test_steps_ascend_also_when_a_run_goes_back(run: SinkRun, simulation: Simulation) -> None:
    steps = [simulation.step(n, 0, 4) for n in range(1, 7)]
    order = [*steps[:4], HeldOutEvent(4, 1.0), *steps[1:6], HeldOutEvent(4, 2.0), HeldOutEvent(6, 3.0)]
    feed = Feed(run, {"kept": Kept})
    for event in order:
        feed.see(event)
    feed.close()
    assert [e.step for e in kept[0].events if isinstance(e, StepEvent)] == [1, 2, 3, 4, 5, 6]
    assert [e.loss for e in kept[0].events if isinstance(e, HeldOutEvent)] == [1.0, 3.0]


def test_a_sink_that_fails_is_left_out_and_the_others_go_on(run: SinkRun, simulation: Simulation) -> None:
    class Broken(Kept):
        def write(self, events: Sequence[Event]) -> None:
            raise ConnectionError("the service is away")

    def absent(run: SinkRun) -> Sink:
        raise OSError("no such host")

    feed = Feed(run, {"broken": Broken, "absent": absent, "kept": Kept}, interval_s=0.001)
    events = list(simulation.events())
    for event in events:
        feed.see(event)
    feed.close()
    assert kept[1].events == events
    assert sorted(feed.warnings()) == [
        "the sink absent is left out from now on, training goes on: OSError: no such host",
        "the sink broken is left out from now on, training goes on: ConnectionError: the service is away",
    ]


def test_a_sink_that_hangs_costs_training_nothing_and_no_memory(
    run: SinkRun, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_WAITING", 100)
    free = threading.Event()

    class Hanging(Kept):
        def write(self, events: Sequence[Event]) -> None:
            assert free.wait(30)

    feed = Feed(run, {"hanging": Hanging})
    step = simulation.step(1, 0, 4)
    start = time.perf_counter()
    for _ in range(10_000):
        feed.see(step)
    assert time.perf_counter() - start < 1.0
    assert feed._waiting.qsize() <= 100
    feed.close(0.1)
    said = feed.warnings()
    assert len(said) == 2 and "events behind" in said[0] and "left behind" in said[1]
    free.set()


def test_tensorboard_reads_back_every_number(run: SinkRun, simulation: Simulation) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'zellige-ray[tensorboard]'")
    rows = written(run, simulation, "tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (path,) = (run.folder / "tensorboard").iterdir()
    got: dict[str, list[tuple[int, float]]] = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            got.setdefault(value.tag, []).append((event.step, value.tensor.float_val[0]))
    assert set(got) == {name for _, values in rows for name in values}
    for name, points in got.items():
        assert points == [(s, pytest.approx(v, rel=1e-6)) for s, v in curve(rows, name)]


@pytest.fixture
def preview(run: SinkRun) -> PreviewEvent:
    """A picture and a clip in the run folder, and one that is gone."""
    folder = run.folder / "previews" / "step-000003"
    folder.mkdir(parents=True)
    write_png(folder / "cat.png", np.full((6, 8, 3), 200, dtype=np.uint8))
    write_png(folder / "sea.png", np.full((4, 10, 3), 100, dtype=np.uint8))
    (folder / "sea.mp4").write_bytes(b"a clip")
    names = ("cat.png", "sea.mp4", "gone.png")
    return PreviewEvent(3, tuple(f"previews/step-000003/{name}" for name in names))


def told(run: SinkRun, name: str, event: Event) -> None:
    feed = Feed(run, {name: sinks[name]}, interval_s=0.01)
    feed.see(event)
    feed.close(60.0)
    assert feed.warnings() == []


def test_tensorboard_shows_the_stills_of_previews_at_their_step(run: SinkRun, preview: PreviewEvent) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'zellige-ray[tensorboard]'")
    told(run, "tensorboard", preview)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"images": 0})
    seen.Reload()
    shown = {tag: seen.Images(tag)[0] for tag in seen.Tags()["images"]}
    assert shown.keys() == {"preview/cat", "preview/sea"}
    assert {one.step for one in shown.values()} == {3}
    sea = shown["preview/sea"]
    assert (sea.width, sea.height) == (10, 4)
    assert sea.encoded_image_string == (run.folder / "previews" / "step-000003" / "sea.png").read_bytes()


@needs("mlflow")
@pytest.mark.filterwarnings("default")
def test_mlflow_keeps_previews_as_files(run: SinkRun, preview: PreviewEvent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    told(run, "mlflow", preview)
    kept_files = {p.name: p.read_bytes() for p in (run.folder / "mlruns").rglob("previews/step-000003/*")}
    assert kept_files.keys() == {"cat.png", "sea.mp4"}
    assert kept_files["sea.mp4"] == b"a clip"


def leveldb_records(data: bytes, block: int = 32_768) -> Iterator[bytes]:
    """Records of a log in LevelDB's format, in which W&B keeps an offline run; its own header of 7 bytes is gone."""
    at, parts = 7, b""
    data = bytes(7) + data  # blocks count from the beginning of the file
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@needs("wandb")
@pytest.mark.filterwarnings("default")
def test_wandb_offline_keeps_every_number(
    run: SinkRun, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    rows = written(run, simulation, "wandb")
    from wandb.proto import wandb_internal_pb2

    (path,) = run.folder.rglob("*.wandb")
    got = []
    for data in leveldb_records(path.read_bytes()[7:]):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            got.append({(i.key or "/".join(i.nested_key)): float(i.value_json) for i in record.history.item})
    losses = [(int(g["_step"]), pytest.approx(g["loss/train"])) for g in got if "loss/train" in g]
    assert curve(rows, "loss/train") == losses
    assert len(losses) == STEPS


@needs("wandb")
@pytest.mark.filterwarnings("default")
def test_wandb_offline_keeps_previews(run: SinkRun, preview: PreviewEvent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    told(run, "wandb", preview)
    kept = {p.suffix: p.read_bytes() for p in run.folder.rglob("media/**/*") if p.is_file()}
    assert kept.keys() == {".png", ".mp4"}
    assert kept[".mp4"] == b"a clip"
    assert kept[".png"].startswith(b"\x89PNG")


@needs("mlflow")
@pytest.mark.filterwarnings("default")
def test_mlflow_keeps_every_number_in_the_run_folder(
    run: SinkRun, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    rows = written(run, simulation, "mlflow")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(run.folder / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("zellige")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.data.params["model.name"] == "wan"
    history = client.get_metric_history(found.info.run_id, "loss/train")
    assert sorted((m.step, m.value) for m in history) == curve(rows, "loss/train")


def test_every_metric_is_in_the_documents() -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "metrics.md").read_text()
    for name, one in names.items():
        full = f"ray_{name}" + ("_total" if one.kind == "counter" else "")
        tags = ", ".join(f"`{tag}`" for tag in one.tags)
        assert f"| `{full}` | {one.kind} | {tags} | {one.meaning} |" in text
