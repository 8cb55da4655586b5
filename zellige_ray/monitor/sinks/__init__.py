"""Sinks: where the metrics of a run go beside `metrics.jsonl`. A new one is a file here and a line in the dict."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from zellige_ray.errors import ConfigError
from zellige_ray.monitor.sinks.mlflow import Mlflow
from zellige_ray.monitor.sinks.ray_gauges import RayGauges
from zellige_ray.monitor.sinks.sink import Open, Sink, SinkRun
from zellige_ray.monitor.sinks.tensorboard import TensorBoard
from zellige_ray.monitor.sinks.wandb import WeightsAndBiases

# a name of `sinks` in the configuration -> how it is opened; none of them is imported before that
sinks: dict[str, Open] = {
    "ray": RayGauges,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": Mlflow,
}


def check_sinks(names: Sequence[str]) -> None:
    """Raises ConfigError for a sink whose package is not installed, with the command that installs it."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"sinks names {name}, which is not installed: pip install 'zellige-ray[{name}]', or leave it out"
            )


__all__ = ["Open", "Sink", "SinkRun", "check_sinks", "sinks"]
