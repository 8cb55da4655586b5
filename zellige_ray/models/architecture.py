"""The architecture of a model that training begins from: read from its folder, compared with the configuration.

Torch-free: a config.json says all that is asked here. Two kinds of folder are read: those of diffusers, and those that
`zellige export` writes for models that are no diffusers class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zellige_ray.config import ModelConfig, RunConfig
from zellige_ray.errors import ModelError
from zellige_ray.models.fetched import fetched
from zellige_ray.models.specs import ModelSpec, get_spec
from zellige_ray.urls import is_url

CONFIG = "config.json"
PIPELINE, PART = "model_index.json", "transformer"
OWN = "zellige."  # before the name of a model that is no diffusers class
SIZES = ("layers", "heads", "head_dim", "mlp_ratio")


@dataclass(frozen=True, slots=True)
class Origin:
    """A diffusers class, and where its config.json keeps what differs from class to class.

    text: width of captions, None where the model has none. patches: its channels are those of a patch, not of latents.
    mlp_ratio: a fixed one; otherwise it is under `mlp_ratio`, or follows from `ffn_dim`.
    """

    class_name: str
    text: str | None
    patches: bool = False
    mlp_ratio: float | None = 4.0


origins: dict[str, Origin] = {
    "wan": Origin("WanTransformer3DModel", "text_dim", mlp_ratio=None),
    "flux": Origin("FluxTransformer2DModel", "joint_attention_dim", patches=True),
    "flux2": Origin("Flux2Transformer2DModel", "joint_attention_dim", patches=True, mlp_ratio=None),
    "qwen": Origin("QwenImageTransformer2DModel", "joint_attention_dim", patches=True),
    "ltx": Origin("LTXVideoTransformer3DModel", "caption_channels", patches=True),
    "hunyuan": Origin("HunyuanVideoTransformer3DModel", "text_embed_dim", mlp_ratio=None),
    "sd3": Origin("SD3Transformer2DModel", "joint_attention_dim"),
    "cogvideox": Origin("CogVideoXTransformer3DModel", "text_embed_dim"),
    "pixart": Origin("PixArtTransformer2DModel", "caption_channels"),
    "sana": Origin("SanaTransformer2DModel", "caption_channels", mlp_ratio=None),
    "label_dit": Origin("DiTTransformer2DModel", None),
}


def resolve_run(config: RunConfig) -> RunConfig:
    """The run's configuration with its model resolved."""
    return config.model_copy(update={"model": resolve(config.model)})


def resolve(config: ModelConfig) -> ModelConfig:
    """The configuration with the sizes of `init_from` or `architecture`, if it has one of them.

    Raises ModelError: a folder that can't be read, another class than that of the named model, a size that the
    configuration gives and the folder contradicts; each names both.
    """
    if config.init_from is None and config.architecture is None:
        return config
    found = read_config(model_folder(config.init_from)) if config.init_from is not None else config.architecture
    assert found is not None
    where = f"model.init_from {config.init_from}" if config.init_from is not None else "model.architecture"
    if config.init_from is not None and config.architecture not in (None, _plain(found), found):
        raise ModelError(f"model.architecture is not the config.json of {where}: remove one of them")
    name = _name(found, config, where)
    sizes = _own_sizes(found, where) if _is_own(found) else _sizes(name, found, where)
    wrong = [
        f"model.{key} is {getattr(config, key):g}, {where} has {value:g}"
        for key, value in sizes.items()
        if key in config.model_fields_set and getattr(config, key) != value
    ]
    if wrong:
        raise ModelError("; ".join(wrong) + ": leave sizes out, or change model.init_from")
    architecture = None if _is_own(found) else _plain(found)
    known = config.model_dump() | {"name": name, **sizes, "architecture": architecture}
    return ModelConfig.model_validate(known)


def text_dim_of(config: ModelConfig) -> int | None:
    """Width of the captions that a resolved model takes; None where any goes."""
    if config.init_from is not None and config.architecture is None:
        width = read_config(model_folder(config.init_from)).get("text_dim")
        return None if width is None else int(width)
    key = origins[config.name].text if config.architecture is not None else None
    value = config.architecture.get(key) if config.architecture is not None and key is not None else None
    return None if value is None else int(value)


def model_folder(path: str) -> Path:
    """The folder with the config.json that `path` means: itself, or the transformer of a pipeline; else ModelError.

    A URL is fetched once, into the cache of this machine.
    """
    folder = fetched(path) if is_url(path) else Path(path)
    if (folder / PIPELINE).is_file() and (folder / PART / CONFIG).is_file():
        return folder / PART
    if not (folder / CONFIG).is_file():
        raise ModelError(
            f"there is no model in {path}: it must hold a {CONFIG}, or a {PIPELINE} and a folder {PART} "
            "(model.init_from)"
        )
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """A model folder's config.json; ModelError when it can't be read or does not say which class it is of."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ModelError(f"cannot read {folder / CONFIG}: {fault}") from fault
    if not isinstance(found, dict) or not isinstance(found.get("_class_name"), str):
        raise ModelError(f"{folder / CONFIG} does not name the class of a model (_class_name)")
    return found


def own_config(config: ModelConfig, text_dim: int) -> dict[str, Any]:
    """The config.json of a model that is no diffusers class."""
    return {
        "_class_name": OWN + config.name,
        **{key: getattr(config, key) for key in SIZES},
        "text_dim": text_dim,
    }


def _name(found: Mapping[str, Any], config: ModelConfig, where: str) -> str:
    class_name = found.get("_class_name")
    if class_name is None:  # model.architecture may leave it out
        return config.name
    names = {origin.class_name: name for name, origin in origins.items()}
    name = str(class_name).removeprefix(OWN) if _is_own(found) else names.get(str(class_name))
    if name is None:
        raise ModelError(f"{where} is a {class_name}; the classes that can be trained are {', '.join(sorted(names))}")
    if "name" in config.model_fields_set and config.name != name:
        raise ModelError(f"model.name is {config.name}, {where} is a {class_name}, which is model.name {name}")
    get_spec(name)
    return name


def _is_own(found: Mapping[str, Any]) -> bool:
    return str(found.get("_class_name", "")).startswith(OWN)


def _own_sizes(found: Mapping[str, Any], where: str) -> dict[str, int | float]:
    missing = [key for key in SIZES if not isinstance(found.get(key), int | float)]
    if missing:
        raise ModelError(f"{where} has a {CONFIG} without {', '.join(missing)}")
    return {key: found[key] for key in SIZES}


def _sizes(name: str, found: Mapping[str, Any], where: str) -> dict[str, int | float]:
    if name not in origins:
        raise ModelError(f"{where}: {name} is no diffusers class, it is described by model.layers, model.heads, ...")
    origin, spec = origins[name], get_spec(name)

    def number(key: str) -> float:
        value = found.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"{where} says {key} is {value!r}, a number is needed")
        return value

    layers, heads, head_dim = (int(number(key)) for key in ("num_layers", "num_attention_heads", "attention_head_dim"))
    mlp_ratio = origin.mlp_ratio
    if mlp_ratio is None:
        mlp_ratio = number("ffn_dim") / (heads * head_dim) if "ffn_dim" in found else float(number("mlp_ratio"))
    _check_latents(origin, spec, found, where)
    return {"layers": layers, "heads": heads, "head_dim": head_dim, "mlp_ratio": float(mlp_ratio)}


def _check_latents(origin: Origin, spec: ModelSpec, found: Mapping[str, Any], where: str) -> None:
    """Raises ModelError where the model takes other latents than the adapter packs."""
    wanted = spec.patch_values if origin.patches else spec.latent_channels
    if found.get("in_channels", wanted) != wanted:
        raise ModelError(
            f"{where} takes {found['in_channels']} channels, {spec.name} is trained with {wanted}: its image-to-video "
            "and edit variants are not supported"
        )
    patch = found.get("patch_size")
    if patch is not None and not origin.patches and patch not in (spec.patch[1], list(spec.patch), spec.patch):
        raise ModelError(f"{where} has patches of {patch}, {spec.name} is packed in patches of {list(spec.patch)}")


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without what says where and by which version they were saved."""
    return {key: value for key, value in found.items() if key == "_class_name" or not key.startswith("_")}
