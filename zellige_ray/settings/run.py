"""Everything that defines a run."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from zellige_ray.settings.data import BatchConfig, DataConfig
from zellige_ray.settings.model import EngineConfig, ModelConfig
from zellige_ray.settings.pool import PlacementConfig, WorkersConfig
from zellige_ray.settings.section import Section
from zellige_ray.settings.training import CheckpointConfig, LossConfig, OptimizerConfig, StateConfig
from zellige_ray.settings.watching import PageConfig, PreviewConfig, SinkName


class RunConfig(Section):
    """Everything that defines a run. Saved, resolved, in the run folder."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9._-]+$", description="Run folders are named by it and the time.")
    folder: str = Field("runs", description="Run folders are made in it; `latest` there is the newest with a step.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of the weights, the order of samples, noise and timesteps.")
    steps: PositiveInt = Field(100, description="Committed optimizer steps, those before a resume included.")
    evaluate_every: PositiveInt = Field(25, description="Steps between measurements of the held-out loss.")
    compare_batches: int = Field(
        5, ge=0, description="Batches on which policies are timed against each other at the end."
    )
    resume: str | None = Field(None, description="A run folder or a checkpoint folder to go on from, or its URL.")
    data: DataConfig
    batch: BatchConfig
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    state: StateConfig = StateConfig()
    engine: EngineConfig = EngineConfig()
    workers: WorkersConfig = WorkersConfig()
    placement: PlacementConfig = PlacementConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    preview: PreviewConfig = PreviewConfig()
    page: PageConfig = PageConfig()
    sinks: tuple[SinkName, ...] = Field(
        ("ray",),
        strict=False,
        description="Where metrics go beside metrics.jsonl: `ray` (Prometheus), `tensorboard`, `wandb`, `mlflow`.",
    )
    peak_flops: PositiveFloat | None = Field(
        None, description="Peak FLOP/s of one rank, which HFU is measured against; null: FLOP/s are shown in its place."
    )

    @model_validator(mode="after")
    def _blocks_are_not_cut(self) -> RunConfig:
        if self.optimizer.name == "adamw8bit" and self.state.layout != "replicated":
            raise ValueError(
                f"optimizer.name is adamw8bit, whose blocks of moments can't be cut, and state.layout is "
                f"{self.state.layout}: set state.layout to replicated, or optimizer.name to adamw"
            )
        return self

    @model_validator(mode="after")
    def _one_rule_of_what_is_drawn(self) -> RunConfig:
        if self.data.sources is not None and self.batch.image_ratio is not None:
            raise ValueError(
                f"batch.image_ratio is {self.batch.image_ratio:g} and data.sources has ratios of its own: set "
                "batch.image_ratio to null, and the ratios of a data set of images and one of videos"
            )
        return self
