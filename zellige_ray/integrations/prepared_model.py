"""PreparedModel: a user's module, unmodified, that takes batches; the place of DistributedDataParallel in a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.config import ModelConfig
from zellige_ray.errors import CommError, ModelError
from zellige_ray.integrations.batch import Batch
from zellige_ray.models.registry import get_adapter
from zellige_ray.models.specs import get_spec


class PreparedModel(nn.Module):
    """Call it with a batch. `module` is the user's own, for checkpoints, as with DistributedDataParallel."""

    def __init__(self, module: nn.Module, name: str, heads: int | None, broke: Callable[[CommError], None]) -> None:
        """name: a key of `zellige_ray.models.specs.specs`. broke: told of a step that can't be finished."""
        super().__init__()
        self.spec = get_spec(name)
        self.module = module
        self.adapter = get_adapter(name)
        self._bound = self.adapter.bind(module)
        self._broke = broke
        heads = heads or _heads(module, name)
        parameters = list(module.parameters())
        self.dtype: torch.dtype = parameters[0].dtype
        width = _width(module) or heads * 64
        config = ModelConfig(
            name=name, layers=len(self._bound.blocks), heads=heads, head_dim=max(12, width // heads // 2 * 2)
        )
        self.preset = self.spec.preset(config, parameters[0].element_size())

    def forward(self, batch: Batch, tokens_TCphw: Tensor | None = None) -> Tensor:
        """Prediction per token, shaped like `batch.tokens`, which `tokens_TCphw` replaces where it is given."""
        packed = batch.share.packed
        if tokens_TCphw is not None:
            packed = replace(packed, tokens_TCphw=tokens_TCphw)
        try:
            return self._bound(packed, batch.engine)
        except CommError as fault:  # the loop goes on; the step is dropped when it votes
            self._broke(fault)
            return torch.zeros_like(packed.tokens_TCphw, requires_grad=True)


def _heads(module: nn.Module, name: str) -> int:
    config: Any = getattr(module, "config", None)
    blocks: Any = getattr(module, "blocks", None)
    found = getattr(config, "num_attention_heads", None) or (getattr(blocks[0], "heads", None) if blocks else None)
    if not isinstance(found, int):
        raise ModelError(
            f"can't see how many heads this {type(module).__name__} has: prepare_model(..., {name!r}, heads=N)"
        )
    return found


def _width(module: nn.Module) -> int | None:
    config: Any = getattr(module, "config", None)
    heads, size = getattr(config, "num_attention_heads", None), getattr(config, "attention_head_dim", None)
    return heads * size if isinstance(heads, int) and isinstance(size, int) else None
