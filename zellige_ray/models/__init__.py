"""Models: adapters over diffusers' Diffusion Transformers, the small reference DiT. Lazy: `specs` needs no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zellige_ray.models.specs import ModelSpec, get_spec

if TYPE_CHECKING:
    from zellige_ray.models.adapter import BoundModel, ModelAdapter, Packed
    from zellige_ray.models.registry import adapters, get_adapter

_homes = {
    "BoundModel": "adapter",
    "ModelAdapter": "adapter",
    "Packed": "adapter",
    "adapters": "registry",
    "get_adapter": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_homes[name]}"), name)


__all__ = ["BoundModel", "ModelAdapter", "ModelSpec", "Packed", "adapters", "get_adapter", "get_spec"]
