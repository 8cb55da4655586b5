"""Settings of the model: its sizes, what of it trains, how it computes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from zellige_ray.settings.section import Section


class LoraConfig(Section):
    """Low-rank adapters beside frozen layers. `model.lora: {}` takes all defaults."""

    rank: PositiveInt = Field(16, description="Width of every adapter.")
    alpha: PositiveFloat | None = Field(None, description="What adapters add is scaled by alpha / rank; null: as rank.")
    targets: tuple[str, ...] = Field(
        ("to_q", "to_k", "to_v", "to_out.0"),
        strict=False,
        min_length=1,
        description="Linear layers that get one: ends of their names, or globs over whole names.",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Only 0: what a model drops would depend on the placement.")

    @model_validator(mode="after")
    def _nothing_random(self) -> LoraConfig:
        if self.dropout:
            raise ValueError(
                f"model.lora.dropout is {self.dropout:g}, only 0 can be used: what is dropped would differ with the "
                "placement of a sequence; use a lower model.lora.rank or optimizer.weight_decay instead"
            )
        return self


class ModelConfig(Section):
    """The Diffusion Transformer; sizes are those of the named architecture."""

    name: str = Field("wan", description="A key of `zellige_ray.models.specs.specs`, such as `wan`, `flux` or `dit`.")
    layers: PositiveInt = Field(4, description="Transformer blocks.")
    heads: PositiveInt = Field(4, description="Attention heads; the model's width is heads x head_dim.")
    head_dim: int = Field(32, ge=12, multiple_of=2, description="Even, at least 12: it holds 3-D rotary positions.")
    mlp_ratio: PositiveFloat = Field(4.0, description="Hidden width of the MLP over the model width.")
    checkpointing: Literal["none", "full", "attention"] = Field(
        "none",
        description="Recompute blocks in backward; `attention` keeps attention results: nothing is exchanged twice.",
    )
    init_from: str | None = Field(
        None,
        description="Folder or URL of a diffusers model, or of a pipeline with one, to begin from: weights and sizes.",
    )
    architecture: dict[str, Any] | None = Field(
        None, description="Every setting of the diffusers class, as in its config.json; `init_from` fills it in."
    )
    train: tuple[str, ...] | None = Field(
        None, strict=False, min_length=1, description="Globs of the parameters that train; the rest stays. null: all."
    )
    lora: LoraConfig | None = Field(None, description="Train low-rank adapters instead of the model. null: the model.")

    @model_validator(mode="after")
    def _one_choice_of_what_trains(self) -> ModelConfig:
        if self.train is not None and self.lora is not None:
            raise ValueError(
                f"model.train is {list(self.train)} and model.lora is set, which freezes every parameter of the model: "
                "remove one of them"
            )
        return self


class EngineConfig(Section):
    """How attention is computed and how ranks exchange its operands."""

    kernel: Literal["auto", "sdpa", "varlen", "flash"] = Field(
        "auto", description="A key of `zellige_ray.attention.kernels.kernels`, or `auto`, which says what it took."
    )
    transport: Literal["auto", "p2p", "group", "world"] = Field(
        "auto",
        description="`p2p`: between neighbours. `group`: all-to-all in each component. `world`: all-to-all of all.",
    )
    dtype: Literal["float32", "float64", "bfloat16"] = Field(
        "float32", description="What the model computes in; in `bfloat16` weights and optimizer stay float32."
    )
    deterministic: bool = Field(True, description="Only kernels whose result does not depend on timing.")

    @property
    def dtype_bytes(self) -> int:
        """Of one value of `dtype`."""
        return {"float32": 4, "float64": 8, "bfloat16": 2}[self.dtype]

    @model_validator(mode="after")
    def _flash_is_half(self) -> EngineConfig:
        if self.kernel == "flash" and self.dtype != "bfloat16":
            raise ValueError(f"engine.kernel flash computes in bfloat16, engine.dtype is {self.dtype}: change either")
        return self
