"""Folders of weights: their safetensors compared with a module by headers alone, then read into it.

Layout of diffusers: one file, or several with an index. No pickles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from zellige_ray.errors import ModelError

WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = WEIGHTS + ".index.json"
SHOWN = 4


def check_weights(folder: Path, module: nn.Module) -> None:
    """Raises ModelError, naming keys and shapes, unless the folder holds exactly the state of the module.

    Reads headers only; the module may be on the meta device.
    """
    there = {name: shape for file in _files(folder) for name, shape in _header(file).items()}
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    faults = [
        _listed("is missing", sorted(wanted.keys() - there.keys())),
        _listed("is unexpected", sorted(there.keys() - wanted.keys())),
        _listed(
            "has another shape",
            [
                f"{name} {list(there[name])} for {list(shape)}"
                for name, shape in sorted(wanted.items())
                if name in there and there[name] != shape
            ],
        ),
    ]
    if any(faults):
        raise ModelError(
            f"the weights in {folder} are not those of a {type(module).__name__} of this size: "
            + "; ".join(f for f in faults if f)
        )


def load_weights(folder: Path, module: nn.Module) -> None:
    """Copies the folder's weights into the module, in the module's types. Raises ModelError like `check_weights`."""
    check_weights(folder, module)
    state: Mapping[str, Tensor] = module.state_dict()
    with torch.no_grad():
        for name, tensor in _tensors(folder):
            state[name].copy_(tensor)


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  (no mapping)
                    yield name, opened.get_tensor(name)
        except (OSError, SafetensorError) as fault:
            raise ModelError(f"cannot read {file}: {fault}") from fault


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        try:
            names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as fault:
            raise ModelError(f"cannot read {folder / INDEX}: {type(fault).__name__}: {fault}") from fault
        files = [folder / str(name) for name in sorted(names)]
    else:
        files = [folder / WEIGHTS]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        pickles = (
            " (pickles such as *.bin are not read: save them again as safetensors)" if _has_pickles(folder) else ""
        )
        raise ModelError(f"{folder} has no {', '.join(missing[:SHOWN])}{pickles}")
    return files


def _has_pickles(folder: Path) -> bool:
    return any(folder.glob("*.bin"))


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(file, framework="pt") as opened:
            sizes: Any = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            return dict(sizes)
    except (OSError, SafetensorError) as fault:
        raise ModelError(f"cannot read {file}: {fault}") from fault


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more} {what}" if names else ""
