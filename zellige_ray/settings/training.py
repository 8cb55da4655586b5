"""Settings of training: loss, optimizer, where its state lies, when it is saved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from zellige_ray.settings.section import Section


class LossConfig(Section):
    """Flow matching: x_t = (1 - t) x0 + t noise, target noise - x0."""

    weighting: Literal["sample", "token"] = Field("sample", description="Every sample counts the same, or every token.")
    timestep_mean: float = Field(0.0, description="Mean of the logit-normal timestep.")
    timestep_std: PositiveFloat = Field(1.0, description="Deviation of the logit-normal timestep.")
    shift: PositiveFloat = Field(1.0, description="t -> shift t / (1 + (shift - 1) t); more noise when above 1.")


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """AdamW, warm-up, clipping, EMA."""

    name: Literal["adamw", "adamw8bit"] = Field(
        "adamw", description="`adamw8bit`: moments of 8 bits, by bitsandbytes; only with `state.layout` replicated."
    )
    lr: PositiveFloat = Field(1e-3, description="Learning rate after the warm-up.")
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), strict=False, description="AdamW's decay of both moments.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's decoupled weight decay.")
    warmup_steps: int = Field(5, ge=0, description="Steps of linear warm-up.")
    schedule: Literal["constant", "cosine", "linear", "stable"] = Field(
        "constant", description="After the warm-up, to the last step; `stable` is constant and falls in the last fifth."
    )
    final_lr: float | None = Field(
        None, ge=0, le=1, description="Share of `lr` that a falling schedule leaves at the last step; null: a tenth."
    )
    clip_norm: PositiveFloat | None = Field(1.0, description="Clip by the true global norm; null: never.")
    ema_decay: float = Field(0.99, ge=0, lt=1, description="0: no EMA.")
    fused: bool = Field(False, description="Apply a step by one kernel per device instead of a few per operation.")
    offload: bool = Field(False, description="Keep the moments in host memory and apply steps there; for GPUs only.")

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> OptimizerConfig:
        if self.schedule == "constant" and self.final_lr is not None:
            raise ValueError(
                f"optimizer.final_lr is {self.final_lr:g}, which optimizer.schedule constant never comes to: choose a "
                "falling schedule, or set it to null"
            )
        if self.name == "adamw8bit" and (self.offload or self.fused):
            which = "offload" if self.offload else "fused"
            raise ValueError(
                f"optimizer.{which} is a way of optimizer.name adamw, optimizer.name is adamw8bit: set {which} to false"
            )
        if self.offload and self.fused:
            raise ValueError(
                "optimizer.offload applies steps on the CPU, optimizer.fused asks for a kernel of the GPU: set one to "
                "false"
            )
        return self


class StateConfig(Section):
    """Who holds what of parameters, gradients, optimizer and EMA, and how many deaths that survives."""

    layout: Literal["replicated", "fsdp", "hsdp"] = Field(
        "replicated",
        description="Every rank holds everything; or all ranks share one copy; or the ranks of each node share one.",
    )
    redundancy: Literal[1, 2] = Field(
        2,
        description="2: what a rank alone holds is copied to another's memory, on another node if there is one.",
    )
    every: PositiveInt = Field(
        10, description="Steps between these copies; at most so many are replayed after a death."
    )


class CheckpointConfig(Section):
    """When the state is saved, and how much of it stays."""

    every: PositiveInt = Field(50, description="Steps between checkpoints.")
    keep: PositiveInt = Field(2, description="Newest complete checkpoints that stay.")
    to: str | None = Field(
        None,
        pattern="://",
        description="URL, such as `s3://bucket/runs`, that complete checkpoints are copied to as well, by run.",
    )
