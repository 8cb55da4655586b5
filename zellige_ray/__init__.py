"""Zellige on Ray: elastic training of Diffusion Transformers, each batch planned sequence by sequence.

The public face is lazy: a name loads its module when it is first used, so that planning needs neither torch nor ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zellige_ray.api import plan, simulate, train
    from zellige_ray.config import RunConfig, load_config, parse_config
    from zellige_ray.errors import ZelligeError
    from zellige_ray.placement import (
        Cluster,
        CostModel,
        HardwareProfile,
        ModelPreset,
        Plan,
        Sequence,
        load_hardware,
        load_model,
        make_plan,
        plan_from_json,
        plan_to_json,
    )
    from zellige_ray.placement.stream import PolicyFigures

__version__ = "0.1.0"

_face = {
    "plan": "zellige_ray.api",
    "profile": "zellige_ray.api",
    "simulate": "zellige_ray.api",
    "train": "zellige_ray.api",
    "RunConfig": "zellige_ray.config",
    "load_config": "zellige_ray.config",
    "parse_config": "zellige_ray.config",
    "ZelligeError": "zellige_ray.errors",
    "Cluster": "zellige_ray.placement",
    "CostModel": "zellige_ray.placement",
    "HardwareProfile": "zellige_ray.placement",
    "ModelPreset": "zellige_ray.placement",
    "Plan": "zellige_ray.placement",
    "PolicyFigures": "zellige_ray.placement.stream",
    "Sequence": "zellige_ray.placement",
    "load_hardware": "zellige_ray.placement",
    "load_model": "zellige_ray.placement",
    "make_plan": "zellige_ray.placement",
    "plan_from_json": "zellige_ray.placement",
    "plan_to_json": "zellige_ray.placement",
}

__all__ = [
    "Cluster",
    "CostModel",
    "HardwareProfile",
    "ModelPreset",
    "Plan",
    "PolicyFigures",
    "RunConfig",
    "Sequence",
    "ZelligeError",
    "__version__",
    "load_config",
    "load_hardware",
    "load_model",
    "make_plan",
    "parse_config",
    "plan",
    "plan_from_json",
    "plan_to_json",
    "profile",
    "simulate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _face:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_face[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
