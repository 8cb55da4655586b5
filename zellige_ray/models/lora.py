"""LoRA: PEFT's adapters beside the linear layers of a frozen module, the same on every rank, and their way back out.

The module keeps its class and its forward; a wrapped layer `x` holds its weights as `x.base_layer`.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import LoraConfig
from zellige_ray.errors import ConfigError
from zellige_ray.models.fingerprint import tensors_hash

ADAPTER = "default"
MARK = ".lora_"  # in the name of a parameter of an adapter, and of no other
DEPTH_SEED = 1_000_003  # apart from the seed's own first draws, which are the model's


def require_peft() -> None:
    """Raises ConfigError, with the command that installs it, when PEFT is not there."""
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(
            "model.lora needs peft, which is not installed: pip install 'zellige-ray[lora]', or remove it"
        )


def attach(module: nn.Module, config: LoraConfig, targets: Sequence[str], seed: int) -> None:
    """Adapters on the named linear layers; everything else is frozen.

    A is uniform as PEFT's own, drawn by the seed in the order of the layers; B is 0, so that the model is at first what
    it was. Raises ConfigError without PEFT.
    """
    require_peft()
    from peft import inject_adapter_in_model

    inject_adapter_in_model(peft_config(config, targets), module, ADAPTER)
    generator = torch.Generator().manual_seed(seed + DEPTH_SEED)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(MARK in name)
            if ".lora_A." in name and parameter.device.type != "meta":
                limit = 1 / math.sqrt(parameter.shape[1])
                drawn = torch.rand(parameter.shape, generator=generator) * (2 * limit) - limit
                parameter.copy_(drawn.to(parameter.dtype))
            elif ".lora_B." in name:
                parameter.zero_()


def peft_config(config: LoraConfig, targets: Sequence[str]) -> Any:
    """The configuration as PEFT's own."""
    from peft import LoraConfig as PeftConfig

    make: Any = PeftConfig
    alpha = config.rank if config.alpha is None else config.alpha
    return make(
        r=config.rank,
        lora_alpha=int(alpha) if float(alpha).is_integer() else alpha,
        target_modules=list(targets),
        lora_dropout=0.0,
    )


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return MARK in name


def base_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module without its adapters, under the names that it has without them."""
    state = module.state_dict()
    return {name.replace(".base_layer.", "."): value for name, value in state.items() if not is_adapter(name)}


def note_base(module: nn.Module) -> None:
    """Remembers which weights the adapters stand beside, by a fingerprint; nothing where there are no adapters."""
    if any(is_adapter(name) for name, _ in module.named_parameters()):
        module.__dict__["_zellige_base"] = tensors_hash(base_tensors(module))


def base_of(module: nn.Module) -> str | None:
    """The fingerprint of the weights that the adapters stand beside; None for a module without adapters."""
    found: str | None = module.__dict__.get("_zellige_base")
    return found


def adapted_layers(module: nn.Module) -> dict[str, Any]:
    """Name -> wrapped layer, in the module's order."""
    from peft.tuners.lora import LoraLayer

    return {name: child for name, child in module.named_modules() if isinstance(child, LoraLayer)}


def merge(module: nn.Module) -> None:
    """Adds every adapter to its layer and takes it away: the module is of its own class again, nothing around it."""
    for name, layer in adapted_layers(module).items():
        layer.merge()
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, layer.get_base_layer())


def diffusers_file(adapters: Mapping[str, Tensor], config: LoraConfig, targets: Sequence[str]) -> tuple[Any, Any]:
    """(tensors, metadata) of the file that diffusers' pipelines write and read.

    adapters: by their names in the module. Source: diffusers' `save_lora_weights`, prefix of its transformer.
    """
    tensors = {f"transformer.{name.replace(f'.{ADAPTER}.', '.')}": value for name, value in adapters.items()}
    known = peft_config(config, targets).to_dict()
    plain = {f"transformer.{key}": sorted(v) if isinstance(v, set) else v for key, v in known.items()}
    return tensors, {"format": "pt", "lora_adapter_metadata": json.dumps(plain, indent=2, sort_keys=True, default=str)}
