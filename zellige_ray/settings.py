"""The sections of a run configuration: what can be set, what it means, and which settings contradict each other."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

DRIVER_RESTART_S = 5.0  # 0.6-2 s measured; a worker must not give up on a driver that comes back


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


S = TypeVar("S", bound=Section)


def _agree(section: S, where: str, needed: bool, path: str | None) -> S:
    """The section, if it has a path where its kind needs one, and none where the path would be ignored."""
    kind = section.model_dump()["name"]
    if needed and path is None:
        raise ValueError(f"{where}.name is {kind}, which needs {where}.path")
    if not needed and path is not None:
        raise ValueError(
            f"{where}.path is {path!r}, which {where}.name {kind} would ignore: remove it or change the name"
        )
    return section


class CodecConfig(Section):
    """How pixels become latents."""

    name: Literal["dct", "vae"] = Field(
        "dct", description="`dct`: fixed 3-D DCT, 4x8x8, 16 channels. `vae`: diffusers."
    )
    path: str | None = Field(None, description="Local folder or hub id of a diffusers VAE; only for `vae`.")

    @model_validator(mode="after")
    def _path_goes_with_vae(self) -> CodecConfig:
        return _agree(self, "data.codec", self.name == "vae", self.path)


class TextConfig(Section):
    """How captions become embeddings."""

    name: Literal["ngram", "transformers"] = Field(
        "ngram", description="`ngram`: deterministic hashed n-grams, offline."
    )
    path: str | None = Field(None, description="Local folder or hub id of an encoder; only for `transformers`.")
    dim: PositiveInt = Field(64, description="Embedding width of `ngram`; a transformers encoder brings its own.")
    max_tokens: PositiveInt = Field(256, description="Longer captions are cut; the report counts them.")

    @model_validator(mode="after")
    def _path_goes_with_transformers(self) -> TextConfig:
        return _agree(self, "data.text", self.name == "transformers", self.path)


class DataConfig(Section):
    """Where samples come from and how they are encoded."""

    source: str = Field(
        description="`mini`, a folder of media with .txt captions, a manifest .jsonl, or a latent cache."
    )
    cache: str = Field("data/cache", description="Folder of encoded latents; filled on demand, shared between runs.")
    codec: CodecConfig = CodecConfig()
    text: TextConfig = TextConfig()
    max_pixels: PositiveInt | None = Field(None, description="Media with a larger frame area is scaled down to it.")
    max_frames: PositiveInt | None = Field(None, description="Longer clips are trimmed to it; the report counts them.")
    held_out: int = Field(8, ge=0, description="Samples kept out of training to measure the held-out loss.")
    max_corrupt: float = Field(0.1, ge=0, le=1, description="Share of corrupt files above which the run stops.")


class BatchConfig(Section):
    """What one global step trains on, whatever the number of workers."""

    tokens: PositiveInt | None = Field(None, description="Global batch by visual tokens; the first sample always fits.")
    samples: PositiveInt | None = Field(None, description="Global batch by samples.")
    image_ratio: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of images among the samples of a batch, as far as the pass allows; default: as drawn.",
    )

    @model_validator(mode="after")
    def _one_size(self) -> BatchConfig:
        if (self.tokens is None) == (self.samples is None):
            both = f"batch.tokens is {self.tokens} and batch.samples is {self.samples}"
            raise ValueError(f"{both}: set exactly one of them")
        return self


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
        description="Folder of a diffusers model, or of a pipeline with one, to begin from: its weights and its sizes.",
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


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """AdamW, warm-up, clipping, EMA."""

    name: Literal["adamw"] = Field("adamw", description="A key of `zellige_ray.training.optimizers.optimizers`.")
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
        if self.offload and self.fused:
            raise ValueError(
                "optimizer.offload applies steps on the CPU, optimizer.fused asks for a kernel of the GPU: set one to "
                "false"
            )
        return self


class LossConfig(Section):
    """Flow matching: x_t = (1 - t) x0 + t noise, target noise - x0."""

    weighting: Literal["sample", "token"] = Field("sample", description="Every sample counts the same, or every token.")
    timestep_mean: float = Field(0.0, description="Mean of the logit-normal timestep.")
    timestep_std: PositiveFloat = Field(1.0, description="Deviation of the logit-normal timestep.")
    shift: PositiveFloat = Field(1.0, description="t -> shift t / (1 + (shift - 1) t); more noise when above 1.")


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

    @model_validator(mode="after")
    def _flash_is_half(self) -> EngineConfig:
        if self.kernel == "flash" and self.dtype != "bfloat16":
            raise ValueError(f"engine.kernel flash computes in bfloat16, engine.dtype is {self.dtype}: change either")
        return self


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


class CheckpointConfig(Section):
    """When the state is saved, and how much of it stays."""

    every: PositiveInt = Field(50, description="Steps between checkpoints.")
    keep: PositiveInt = Field(2, description="Newest complete checkpoints that stay.")


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
    resume: str | None = Field(None, description="A run folder or a checkpoint folder to go on from.")
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
