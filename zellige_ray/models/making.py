"""Making: what every adapter does with a new module: its first weights, what of it trains, its type and its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ModelError
from zellige_ray.models import lora
from zellige_ray.models.architecture import model_folder, origins, text_dim_of
from zellige_ray.models.bound import remember_checkpointing
from zellige_ray.models.folders import check_weights, load_weights
from zellige_ray.models.initial import initialise
from zellige_ray.models.registry import get_adapter
from zellige_ray.models.trained import choose_trained


def finish(
    module: nn.Module,
    config: ModelConfig,
    seed: int,
    dtype: torch.dtype,
    device: torch.device | str,
    zero: Sequence[str] = (),
) -> nn.Module:
    """A new module ready to be trained: weights of `init_from` or by the seed, adapters in place, the rest frozen.

    zero: submodules whose weights start at 0. Raises ModelError for weights that don't fit, names that match nothing.
    """
    if config.init_from is not None:
        nn.Module.to(module, dtype=dtype)  # before they are read: a wider type would be rounded on the way
        load_weights(model_folder(config.init_from), module)
    else:
        initialise(module, seed, zero)
    choose_trained(module, config, seed)
    remember_checkpointing(module, config.checkpointing)
    nn.Module.to(module, dtype=dtype, device=device)  # not ModelMixin.to, which warns about float32 parts
    lora.note_base(module)
    return module


def check_model(config: ModelConfig, text_dim: int) -> None:
    """Everything that `build` could refuse, found by names and headers, before any weight is read.

    config: resolved. text_dim: width of the captions. Raises ModelError; ConfigError without PEFT.
    """
    wanted = text_dim_of(config)
    if wanted is not None and wanted != text_dim:
        raise ModelError(
            f"captions are {text_dim} wide (data.text), the model of model.init_from takes {wanted}: encode them with "
            "the text encoder that it was trained with"
        )
    if config.init_from is not None:
        with torch.device("meta"):
            module = get_adapter(config.name).make(config, text_dim)
        check_weights(model_folder(config.init_from), module)
    if config.init_from is not None or config.lora is not None or config.train is not None:
        outline(config, text_dim)


def outline(config: ModelConfig, text_dim: int) -> nn.Module:
    """What `build` makes of a resolved configuration, on the meta device: names and shapes, without memory.

    Raises ModelError for names in the configuration that match nothing.
    """
    with torch.device("meta"):
        module = get_adapter(config.name).make(config, text_dim)
        choose_trained(module, config, seed=0)
    return module


def from_architecture(name: str, architecture: Mapping[str, Any]) -> nn.Module:
    """A diffusers module by its config.json, weights as they come; ModelError where the class refuses it."""
    import diffusers

    kind: Any = getattr(diffusers, origins[name].class_name)
    settings = {key: value for key, value in architecture.items() if not key.startswith("_")}
    try:
        module: nn.Module = kind.from_config(settings)
    except (TypeError, ValueError, RuntimeError, AssertionError) as fault:
        raise ModelError(f"diffusers' {kind.__name__} refuses model.architecture: {fault}") from fault
    return module
