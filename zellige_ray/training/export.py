"""Export: a run's weights as a folder that other tools open, made offline from a complete checkpoint.

Written under a temporary name beside its place and renamed, so that a folder is whole or not there.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from zellige_ray import urls
from zellige_ray.config import ModelConfig
from zellige_ray.errors import CheckpointError
from zellige_ray.models import lora
from zellige_ray.models.architecture import CONFIG, own_config
from zellige_ray.models.folders import WEIGHTS
from zellige_ray.models.making import outline
from zellige_ray.models.registry import get_adapter
from zellige_ray.training import checkpoint_files
from zellige_ray.training.checkpoint_files import Position
from zellige_ray.training.checkpoint_io import check_base
from zellige_ray.training.saved import Part, SavedWeights
from zellige_ray.urls import check_url, is_url

SHARD_SIZE = "10GB"
LORA_WEIGHTS = "pytorch_lora_weights.safetensors"
SHOWN = 4
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}

Weights = Literal["ema", "raw"]


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. class_name: of diffusers, or `zellige.NAME` for a model that is no class of it."""

    folder: str
    step: int
    weights: Weights
    class_name: str
    dtype: str
    num_parameters: int
    num_bytes: int
    files: tuple[str, ...]


def export_model(
    run: str,
    to: str,
    step: int | None = None,
    weights: Weights | None = None,
    dtype: str | None = None,
    shard_size: str = SHARD_SIZE,
) -> Exported:
    """Writes a whole model in `save_pretrained` layout; adapters of a LoRA run are merged into it.

    run: a run folder or one of its checkpoints. step: of the checkpoint, default the newest. weights: default the EMA
    where the run keeps one. dtype: default as saved. Raises CheckpointError: no such checkpoint, keys or shapes that
    the model does not have, a target that is not empty, a disk that refuses; ModelError: base weights that are gone.
    """
    target = _check_target(to)
    source = Source.open(run, step)
    module, part = source.load(weights)
    if dtype is not None:
        nn.Module.to(module, dtype=DTYPES[dtype])
    with _whole(target) as draft:
        class_name = _save(module, draft, source.position, shard_size)
    return source.exported(target, part, class_name, module.state_dict())


def export_lora(
    run: str, to: str, step: int | None = None, weights: Weights | None = None, dtype: str | None = None
) -> Exported:
    """Writes the adapters of a LoRA run as the file that diffusers' `load_lora_weights` reads; errors as above."""
    target = _check_target(to)
    source = Source.open(run, step)
    config = source.config.lora
    if config is None:
        raise CheckpointError(f"{run} did not train adapters (model.lora): leave --lora out to write its whole model")
    module = source.outline()
    if not hasattr(module, "load_lora_adapter"):
        raise CheckpointError(
            f"diffusers loads no adapters into a {type(module).__name__}: leave --lora out, which merges them into the "
            "whole model"
        )
    part, chosen = source.part(weights), [name for name in module.state_dict() if lora.is_adapter(name)]
    source.compare(module)
    adapters = source.saved.read(part, chosen)
    if dtype is not None:
        adapters = {name: value.to(DTYPES[dtype]) for name, value in adapters.items()}
    tensors, metadata = lora.diffusers_file(adapters, config, list(lora.adapted_layers(module)))
    with _whole(target) as draft:
        save_file(tensors, draft / LORA_WEIGHTS, metadata=metadata)
    return source.exported(target, part, type(module).__name__, adapters)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A complete checkpoint, the configuration of its model, and its tensors."""

    checkpoint: Path
    position: Position
    config: ModelConfig
    saved: SavedWeights

    @classmethod
    def open(cls, run: str, step: int | None) -> Source:
        """Raises CheckpointError when the run has no complete checkpoint (of that step)."""
        folder, checkpoint = checkpoint_files.find(run)
        if step is not None:
            checkpoint = checkpoint_files.at_step(folder, step)
        position = checkpoint_files.read_position(checkpoint)
        return cls(checkpoint, position, checkpoint_files.model_of(position, checkpoint), SavedWeights(checkpoint))

    def outline(self) -> nn.Module:
        """The trained module without its weights, adapters in their places."""
        return outline(self.config, self.position.text_dim)

    def part(self, weights: Weights | None) -> Part:
        """Which of the saved weights are meant; the EMA by default, where there is one."""
        has_ema = bool(self.saved.names("ema"))
        if weights == "ema" and not has_ema:
            raise CheckpointError(f"{self.checkpoint} holds no EMA (optimizer.ema_decay was 0): leave --ema out")
        return "ema" if has_ema and weights != "raw" else "model"

    def compare(self, module: nn.Module) -> None:
        """Raises CheckpointError, naming keys and shapes, unless the checkpoint is one of this module."""
        wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        needed = {n for n in wanted if self.config.lora is None or lora.is_adapter(n)}
        there = {name: self.saved.shape("model", name) for name in self.saved.names("model")}
        faults = [
            *(f"{name} is missing" for name in sorted(needed - there.keys())),
            *(f"{name} is unexpected" for name in sorted(there.keys() - wanted.keys())),
            *(
                f"{name} is {list(shape)} there, {list(wanted[name])} in the model"
                for name, shape in sorted(there.items())
                if wanted.get(name, shape) != shape
            ),
        ]
        if faults:
            more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
            raise CheckpointError(
                f"{self.checkpoint} is not a checkpoint of a {self.config.name} as it says: "
                + "; ".join(faults[:SHOWN])
                + more
            )

    def load(self, weights: Weights | None) -> tuple[nn.Module, Part]:
        """The trained module on the CPU, adapters merged, and which weights it has."""
        part, module = self.part(weights), self.outline()
        self.compare(module)
        state = self.saved.read("model", self.saved.names("model"))
        if part == "ema":
            state |= self.saved.read("ema", self.saved.names("ema"))
        if self.config.lora is None:
            module.load_state_dict(state, strict=True, assign=True)
            return module, part
        module = self._base()
        module.load_state_dict(state, strict=False)  # compared above: all adapters are there, and nothing else
        lora.merge(module)
        return module, part

    def _base(self) -> nn.Module:
        """The module of a LoRA run as it began, from `model.init_from` or the seed."""
        make, dtype = get_adapter(self.config.name).build, self.saved.dtype("model")
        module = make(self.config, self.position.text_dim, self.position.seed, dtype, "cpu")
        check_base(self.saved.base(), module, str(self.checkpoint))
        return module

    def exported(self, target: Path, part: Part, class_name: str, tensors: Mapping[str, Tensor]) -> Exported:
        """What was written there."""
        files = sorted(path for path in target.iterdir() if path.is_file())
        (first, *_) = tensors.values()
        return Exported(
            folder=str(target),
            step=self.position.step,
            weights="ema" if part == "ema" else "raw",
            class_name=class_name,
            dtype=str(first.dtype).removeprefix("torch."),
            num_parameters=sum(tensor.numel() for tensor in tensors.values()),
            num_bytes=sum(path.stat().st_size for path in files),
            files=tuple(path.name for path in files),
        )


def _save(module: nn.Module, folder: Path, position: Position, shard_size: str) -> str:
    """Writes config and weights; the name of the class as the config has it."""
    save_pretrained: Callable[..., None] | None = getattr(module, "save_pretrained", None)
    if save_pretrained is not None:
        save_pretrained(folder, safe_serialization=True, max_shard_size=shard_size)
        return type(module).__name__
    own = own_config(ModelConfig(**position.model), position.text_dim)
    (folder / CONFIG).write_text(json.dumps(own, indent=2) + "\n", encoding="utf-8")
    save_file(module.state_dict(), folder / WEIGHTS, metadata={"format": "pt"})
    return str(own["_class_name"])


@contextlib.contextmanager
def local_target(to: str) -> Iterator[str]:
    """Where to write what goes `to` a folder, which is that one, or to a URL: then a folder that is copied at the end.

    The config of a model, or the adapters' one file, comes last. Raises ConfigError without the URL's driver,
    CheckpointError where something lies there already or the store refuses.
    """
    if not is_url(to):
        yield to
        return
    check_url(to, "--to")
    try:
        if urls.listing(to):
            raise CheckpointError("the folder behind --to is not empty: name a new one, or empty it")
        with tempfile.TemporaryDirectory(prefix="zellige-export-") as scratch:
            yield scratch
            urls.put(Path(scratch), to, last=CONFIG)
    except OSError as fault:
        raise CheckpointError(f"cannot write to the URL of --to: {fault}") from fault


def _check_target(to: str) -> Path:
    target = Path(to).absolute()
    if target.is_dir() and any(target.iterdir()):
        raise CheckpointError(f"--to {to} is not empty: name a new folder, or empty it")
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"--to {to} is a file: name a new folder")
    return target


@contextlib.contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name when all went well, and is gone otherwise."""
    draft = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        draft.rename(target)
    except (OSError, SafetensorError) as fault:
        shutil.rmtree(draft, ignore_errors=True)
        why = getattr(fault, "strerror", None) or str(fault)
        raise CheckpointError(f"cannot write {target}: {why}; {_room(target)}") from fault
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _room(target: Path) -> str:
    there = next(path for path in (target, *target.parents) if path.exists())
    return f"{shutil.disk_usage(there).free / 1e6:.1f} MB are free there"
