"""Settings of data: where samples come from, how they are encoded, what makes a batch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from zellige_ray.settings.section import Section, agree


class CodecConfig(Section):
    """How pixels become latents."""

    name: Literal["dct", "vae"] = Field(
        "dct", description="`dct`: fixed 3-D DCT, 4x8x8, 16 channels. `vae`: diffusers."
    )
    path: str | None = Field(None, description="Local folder or hub id of a diffusers VAE; only for `vae`.")

    @model_validator(mode="after")
    def _path_goes_with_vae(self) -> CodecConfig:
        return agree(self, "data.codec", self.name == "vae", self.path)


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
        return agree(self, "data.text", self.name == "transformers", self.path)


class SourceConfig(Section):
    """One of several data sets."""

    source: str = Field(description="As `data.source`.")
    ratio: PositiveFloat = Field(description="Its share of the drawn samples is this over the sum of all ratios.")


DataSetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]


class DataConfig(Section):
    """Where samples come from and how they are encoded."""

    source: str | None = Field(
        None, description="`mini`, a folder of media with .txt captions, a manifest .jsonl, or a latent cache."
    )
    sources: dict[DataSetName, SourceConfig] | None = Field(
        None, min_length=1, description="Instead of `source`: data sets by name, each drawn by its ratio."
    )
    cache: str = Field("data/cache", description="Folder of encoded latents; filled on demand, shared between runs.")
    codec: CodecConfig = CodecConfig()
    text: TextConfig = TextConfig()
    max_pixels: PositiveInt | None = Field(None, description="Media with a larger frame area is scaled down to it.")
    max_frames: PositiveInt | None = Field(None, description="Longer clips are trimmed to it; the report counts them.")
    held_out: int = Field(8, ge=0, description="Samples kept out of training to measure the held-out loss.")
    max_corrupt: float = Field(0.1, ge=0, le=1, description="Share of corrupt files above which the run stops.")

    @model_validator(mode="after")
    def _one_way_to_name_data(self) -> DataConfig:
        if (self.source is None) == (self.sources is None):
            both = f"data.source is {self.source!r} and data.sources is {list(self.sources) if self.sources else None}"
            raise ValueError(f"{both}: set exactly one of them, and the other to null")
        return self

    @property
    def path(self) -> str:
        """The source of a section that has one. Raises ValueError for a mixture, see `each`."""
        if self.source is None:
            raise ValueError("a mixture has several sources")
        return self.source

    def each(self) -> dict[str, DataConfig]:
        """The section of every data set, with one source, by its name; the name of an only one is empty."""
        if self.sources is None:
            return {"": self}
        return {n: self.model_copy(update={"source": s.source, "sources": None}) for n, s in self.sources.items()}

    @property
    def ratios(self) -> dict[str, float]:
        """Of a mixture, by data set; empty for an only one."""
        return {name: one.ratio for name, one in (self.sources or {}).items()}


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
