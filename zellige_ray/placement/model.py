"""A model preset: the sizes of a Diffusion Transformer that decide what a token costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from zellige_ray.errors import ConfigError
from zellige_ray.placement.preset import check_keys, positive, positive_int, read_preset
from zellige_ray.placement.sequence import TextMode

Checkpointing = Literal["full", "none"]


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """Sizes of a Diffusion Transformer.

    text: `joint` (MMDiT: text is part of the sequence) or `cross` (cross-attention). kv_heads: key/value heads when
    fewer than heads; tiles are then cut at multiples of heads / kv_heads.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    mlp_ratio: float
    text: TextMode
    dtype_bytes: int
    checkpointing: Checkpointing
    kv_heads: int | None = None

    def __post_init__(self) -> None:
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise ConfigError(f"model {self.name!r}: kv_heads is {self.kv_heads}, it must divide heads {self.heads}")

    @property
    def head_group(self) -> int:
        """Query heads that share one key/value head; tiles are cut at its multiples."""
        return 1 if self.kv_heads is None else self.heads // self.kv_heads

    @property
    def forwards(self) -> int:
        """How often a layer runs forward in a step."""
        return 2 if self.checkpointing == "full" else 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the YAML form; unset optional fields are left out."""
        return {k: v for k, v in asdict(self).items() if v is not None}


def parse_model(value: Mapping[str, Any]) -> ModelPreset:
    """The preset of plain values; raises ConfigError with the key, the value and what it must be."""
    where = f"model {value.get('name', '?')!r}"
    required = {"name", "layers", "hidden", "heads", "mlp_ratio", "text", "dtype_bytes", "checkpointing"}
    check_keys(where, value, required, {"kv_heads"})
    if value["text"] not in ("joint", "cross"):
        raise ConfigError(f"{where}: text must be joint or cross, got {value['text']!r}")
    if value["checkpointing"] not in ("full", "none"):
        raise ConfigError(f"{where}: checkpointing must be full or none, got {value['checkpointing']!r}")
    kv_heads = value.get("kv_heads")
    return ModelPreset(
        name=str(value["name"]),
        layers=positive_int(where, "layers", value["layers"]),
        hidden=positive_int(where, "hidden", value["hidden"]),
        heads=positive_int(where, "heads", value["heads"]),
        mlp_ratio=positive(where, "mlp_ratio", value["mlp_ratio"]),
        text=cast(TextMode, value["text"]),
        dtype_bytes=positive_int(where, "dtype_bytes", value["dtype_bytes"]),
        checkpointing=cast(Checkpointing, value["checkpointing"]),
        kv_heads=None if kv_heads is None else positive_int(where, "kv_heads", kv_heads),
    )


def load_model(name_or_path: str | Path) -> ModelPreset:
    """A shipped preset by name, or a YAML file by path; raises ConfigError naming the nearest preset."""
    return parse_model(read_preset("models", name_or_path))
