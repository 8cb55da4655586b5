"""Metrics as a real Prometheus scrapes them from a real Ray, and the Grafana dashboard's every query, run there."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from zellige_ray.monitor.sinks.names import names

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = ROOT / "cluster_configs" / "grafana" / "zellige.json"
PROMETHEUS = shutil.which("prometheus")
NEEDED = pytest.mark.skipif(
    PROMETHEUS is None, reason="prometheus is not installed (Debian: apt-get install prometheus)"
)
TIMEOUT_S = 90.0


def panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text())["panels"])


QUERIES = [(p["title"], t["expr"]) for p in panels() for t in p["targets"]]


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as one:
        return int(one.getsockname()[1])


class Prometheus:
    """The HTTP side of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def get(self, path: str, **values: str) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(values)}", timeout=10) as answer:
            value = json.load(answer)
        assert value["status"] == "success", value
        return value["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return list(self.get("query", query=expression)["result"])


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Prometheus]:
    """A simulation on a Ray of its own, scraped every second; ended by its pid."""
    folder = Path(tempfile.mkdtemp(prefix="zm"))  # short: Ray's unix sockets lie in it
    metrics, port = free_port(), free_port()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: ray, static_configs: [{{targets: ['127.0.0.1:{metrics}']}}]}}]\n"
    )
    command = [sys.executable, "-m", "tests.monitor.metrics_run", str(folder), str(metrics)]
    run = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    server = subprocess.Popen(
        [str(PROMETHEUS), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
    )  # fmt: skip
    try:
        assert run.stdout is not None
        assert run.stdout.readline().strip() == "ready"
        client, end = Prometheus(port), time.monotonic() + TIMEOUT_S
        while not any(float(r["value"][1]) == 40 for r in client.query("ray_zellige_step")):
            assert time.monotonic() < end, "the last step has not been scraped"
            time.sleep(0.5)
        yield client
    finally:
        assert run.stdin is not None and run.stdout is not None
        run.stdin.close()
        run.wait(60)
        run.stdout.close()
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def as_grafana_sends(expression: str) -> str:
    return expression.replace("$__rate_interval", "60s").replace("$run", ".*")


@NEEDED
@pytest.mark.slow
@pytest.mark.ray
def test_every_documented_metric_is_scraped_with_its_tags(prometheus: Prometheus) -> None:
    for name, one in names.items():
        series = prometheus.query(f"ray_{name}" + ("_total" if one.kind == "counter" else ""))
        assert series, f"{name} is not there"
        for row in series:
            assert set(one.tags) | {"run"} <= set(row["metric"]), (name, row["metric"])
            assert row["metric"]["run"] == "simulation"
    rows = prometheus.query('ray_zellige_rank_seconds{kind="measured"} > 0')
    assert {(r["metric"]["rank"], r["metric"]["node"]) for r in rows} == {(str(k), "node-0") for k in range(3)}
    assert {r["metric"]["phase"] for r in rows} == {"linear", "attention", "exchange", "wait"}
    gone = prometheus.query('ray_zellige_rank_seconds{rank="3"}')
    assert gone and {r["value"][1] for r in gone} == {"0"}, "a rank that left reads 0"


@NEEDED
@pytest.mark.slow
@pytest.mark.ray
def test_every_query_of_the_dashboard_answers(prometheus: Prometheus) -> None:
    silent = [(title, query) for title, query in QUERIES if not prometheus.query(as_grafana_sends(query))]
    assert silent == []
    assert prometheus.get("label/run/values", **{"match[]": "ray_zellige_step"}) == ["simulation"]


@NEEDED
@pytest.mark.slow
@pytest.mark.ray
def test_counters_count_every_step_once(prometheus: Prometheus) -> None:
    values = {
        name: float(prometheus.query(f"sum(ray_zellige_{name}_total)")[0]["value"][1])
        for name in ("steps", "membership_changes", "lost_seconds", "warnings")
    }
    assert values == {"steps": 40, "membership_changes": 1, "lost_seconds": pytest.approx(0.31), "warnings": 1}


def test_the_dashboard_is_whole_and_asks_only_for_documented_metrics() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert {v["name"] for v in board["templating"]["list"]} == {"datasource", "run"}
    ids = [p["id"] for p in board["panels"]]
    assert len(set(ids)) == len(ids) > 15
    cells = [
        (x, y)
        for p in board["panels"]
        for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
        for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) == 23, "panels overlap"
    known = {f"ray_{name}" + ("_total" if one.kind == "counter" else "") for name, one in names.items()}
    asked = {name for _, query in QUERIES for name in re.findall(r"ray_\w+", query)}
    assert asked == known, "every metric is on the dashboard, and no other"
    for title, query in QUERIES:
        assert query.count("ray_") == query.count('run=~"$run"'), f"{title} mixes runs"
