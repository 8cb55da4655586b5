"""The adapters by model name, imported when they are asked for: diffusers takes seconds to load."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from zellige_ray.models.specs import get_spec

if TYPE_CHECKING:
    from zellige_ray.models.adapter import ModelAdapter

_homes: dict[str, str] = {
    "wan": "zellige_ray.models.wan",
    "dit": "zellige_ray.models.dit",
    "flux": "zellige_ray.models.flux",
    "flux2": "zellige_ray.models.flux2",
    "qwen": "zellige_ray.models.qwen",
    "ltx": "zellige_ray.models.ltx",
    "hunyuan": "zellige_ray.models.hunyuan",
    "sd3": "zellige_ray.models.sd3",
    "cogvideox": "zellige_ray.models.cogvideox",
    "pixart": "zellige_ray.models.pixart",
    "sana": "zellige_ray.models.sana",
    "label_dit": "zellige_ray.models.label_dit",
}


class _Adapters(Mapping[str, "ModelAdapter"]):
    """name -> adapter; each of the modules above has one value named `adapter`."""

    def __getitem__(self, name: str) -> ModelAdapter:
        adapter: ModelAdapter = importlib.import_module(_homes[name]).adapter
        return adapter

    def __iter__(self) -> Iterator[str]:
        return iter(_homes)

    def __len__(self) -> int:
        return len(_homes)


adapters: Mapping[str, ModelAdapter] = _Adapters()


def get_adapter(name: str) -> ModelAdapter:
    """The adapter of a model; ModelError names the nearest known one."""
    return adapters[get_spec(name).name]
