"""The adapters by model name, imported when they are asked for: diffusers takes seconds to load."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from zellige_ray.models.specs import get_spec

if TYPE_CHECKING:
    from zellige_ray.models.adapter import ModelAdapter

_homes: dict[str, str] = {
    "dit": "zellige_ray.models.dit",
    "wan": "zellige_ray.models.wan",
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
