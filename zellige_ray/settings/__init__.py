"""The sections of a run configuration: what can be set, what it means, and which settings contradict each other."""

from zellige_ray.settings.data import BatchConfig, CodecConfig, DataConfig, SourceConfig, TextConfig
from zellige_ray.settings.model import EngineConfig, LoraConfig, ModelConfig
from zellige_ray.settings.pool import PlacementConfig, WorkersConfig
from zellige_ray.settings.run import RunConfig
from zellige_ray.settings.section import Section
from zellige_ray.settings.training import CheckpointConfig, LossConfig, OptimizerConfig, StateConfig
from zellige_ray.settings.watching import PageConfig, PreviewConfig, SinkName

__all__ = [
    "BatchConfig",
    "CheckpointConfig",
    "CodecConfig",
    "DataConfig",
    "EngineConfig",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PageConfig",
    "PlacementConfig",
    "PreviewConfig",
    "RunConfig",
    "Section",
    "SinkName",
    "SourceConfig",
    "StateConfig",
    "TextConfig",
    "WorkersConfig",
]
