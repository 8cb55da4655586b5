"""Settings of the pool: how many workers, how long anybody waits, who plans for them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from zellige_ray.settings.section import Section

DRIVER_RESTART_S = 5.0  # 0.6-2 s measured; a worker must not give up on a driver that comes back


class WorkersConfig(Section):
    """The pool of workers: how many, and how long anybody waits for anybody."""

    count: PositiveInt | Literal["auto"] = Field(
        "auto", description="At most this many. `auto`: one per GPU, else one per CPU core, at most 8."
    )
    min: PositiveInt = Field(1, description="With fewer live workers the run waits, then stops with a checkpoint.")
    threads: PositiveInt = Field(1, description="CPU threads of one worker.")
    memory_bytes: PositiveInt | None = Field(
        None, description="Memory that one worker may fill with tensors; null: what its device has left."
    )
    start_timeout_s: PositiveFloat = Field(180.0, description="All workers must answer within it.")
    wait_timeout_s: PositiveFloat = Field(300.0, description="How long a run waits for workers.min.")
    step_timeout_s: PositiveFloat = Field(600.0, description="A step that takes longer is broken.")
    ping_interval_s: PositiveFloat = Field(0.5, description="The driver asks every worker this often.")
    ping_timeout_s: PositiveFloat = Field(2.0, description="A worker silent for longer is removed.")
    comm_timeout_s: PositiveFloat = Field(60.0, description="Time-out of one collective in the transport library.")
    lease_s: PositiveFloat = Field(30.0, description="Workers without word from a driver for longer end themselves.")

    @model_validator(mode="after")
    def _ordered(self) -> WorkersConfig:
        if isinstance(self.count, int) and self.min > self.count:
            raise ValueError(f"workers.min is {self.min}, above workers.count {self.count}")
        names = ("ping_interval_s", "ping_timeout_s", "comm_timeout_s", "step_timeout_s")
        values = [getattr(self, name) for name in names]
        if not values[0] < values[1] < values[2] <= values[3]:
            given = ", ".join(f"{name} {value:g}" for name, value in zip(names, values, strict=True))
            raise ValueError(f"time-outs must ascend, the last two may be equal: {given}")
        if self.lease_s < self.ping_timeout_s + DRIVER_RESTART_S:
            raise ValueError(
                f"lease_s is {self.lease_s:g}, ping_timeout_s {self.ping_timeout_s:g}: a lease must outlast a driver's "
                f"restart, set it to at least ping_timeout_s + {DRIVER_RESTART_S:g}"
            )
        return self


class PlacementConfig(Section):
    """Who plans the batches."""

    policy: str = Field("zellige", description="A key of `zellige_ray.placement.policies.policies`.")
    hardware: str | None = Field(None, description="Hardware preset or YAML; default: measured at the start.")
    memory_margin: float = Field(
        0.05, ge=0, le=0.5, description="Share of a worker's memory that plans leave free; an overshoot raises it."
    )
    profile: str | None = Field(
        None,
        description="File of `zellige profile` to plan with; default: what an earlier run left in ~/.cache/zellige.",
    )
    profile_s: PositiveFloat = Field(3.0, description="Seconds that workers measure for where no profile is there.")

    @model_validator(mode="after")
    def _one_source(self) -> PlacementConfig:
        if self.hardware is not None and self.profile is not None:
            raise ValueError(
                f"placement.hardware is {self.hardware!r} and placement.profile is {self.profile!r}: name one of them"
            )
        return self
