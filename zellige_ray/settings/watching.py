"""Settings of what a person watches: previews, the live page, sinks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from zellige_ray.settings.section import Section


class PreviewConfig(Section):
    """Pictures and clips drawn from the model while it trains."""

    every: PositiveInt | None = Field(25, description="Steps between previews; null: none.")
    count: PositiveInt = Field(2, description="Samples drawn each time.")
    steps: PositiveInt = Field(12, description="Sampling steps of one preview.")


class PageConfig(Section):
    """The live page that the driver serves."""

    enabled: bool = Field(True, description="Serve it; its address is said when the run begins.")
    host: str = Field(
        "127.0.0.1", min_length=1, description="Address to listen on; 0.0.0.0 is every one of the machine."
    )
    port: int = Field(8270, ge=0, le=65535, description="The next free one when it is taken; 0: any free one.")


SinkName = Literal["ray", "tensorboard", "wandb", "mlflow"]
