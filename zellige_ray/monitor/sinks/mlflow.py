"""MLflow: one MLflow run per launch, at MLFLOW_TRACKING_URI, else in files in the run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from zellige_ray.monitor.events import Event
from zellige_ray.monitor.sinks.pictures import pictures
from zellige_ray.monitor.sinks.scalars import Scalars
from zellige_ray.monitor.sinks.sink import SinkRun

EXPERIMENT = "zellige"  # MLFLOW_EXPERIMENT_NAME overrules it
FOLDER = "mlruns"
MAX_METRICS = 1000  # in one call, a limit of MLflow


class Mlflow:
    """Uses MLflow's client, so that nothing of it becomes global in the process."""

    def __init__(self, run: SinkRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # 3.x asks for consent to its file store
            uri = (run.folder / FOLDER).as_uri()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        self._metric, self._client = Metric, MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(name)
        self._run_id = self._client.create_run(experiment, run_name=run.name).info.run_id
        for key, value in _leaves(run.config):
            self._client.log_param(self._run_id, key, value)
        self._folder = run.folder
        self._scalars = Scalars()

    def write(self, events: Sequence[Event]) -> None:
        now_ms = int(1000 * time.time())
        rows = [
            self._metric(name, value, now_ms, step)
            for step, values in self._scalars.of(events)
            for name, value in values.items()
        ]
        for start in range(0, len(rows), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=rows[start : start + MAX_METRICS])
        for picture in pictures(events, self._folder):
            place = str(picture.file.parent.relative_to(self._folder))
            self._client.log_artifact(self._run_id, str(picture.file), place)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


def _leaves(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for key, leaf in value.items():
        is_section = isinstance(leaf, Mapping)
        out += _leaves(leaf, f"{prefix}{key}.") if is_section else [(f"{prefix}{key}", str(leaf))]
    return out
