"""Compiling: torch.compile of a model's token-wise feed-forward parts, with dynamic length, and a count of its graphs.

Attention stays outside: inside a graph it would mean a new graph per packing. So do modulations, whose rows differ per
batch. What is compiled sees one stream [1, T, D] of any T.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from zellige_ray.errors import ModelError
from zellige_ray.models.bound import Bound

PARTS = ("ffn", "ff", "ff_context", "img_mlp", "txt_mlp")


class Graphs:
    """How many graphs were compiled so far; more than a few per model means that something recompiles per batch."""

    def __init__(self, backend: str) -> None:
        self.count = 0
        self._inner: Callable[..., Any] = _backend(backend)

    def __call__(self, graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
        self.count += 1
        return self._inner(graph, inputs, **options)


def compile_tokenwise(bound: Bound, backend: str = "inductor") -> Graphs:
    """Compile the feed-forward parts of all blocks, on the instances; once per bound model.

    backend: of torch.compile. Raises ModelError where the model has no such part, or they are compiled already.
    """
    if "_zellige_graphs" in bound.module.__dict__:
        raise ModelError("this model's token-wise parts are compiled already")
    parts = [child for block in bound.blocks for name, child in block.named_children() if _is_part(name, child)]
    if not parts:
        raise ModelError(f"{type(bound.module).__name__} has no token-wise part named {', '.join(PARTS)} to compile")
    graphs = Graphs(backend)
    for part in parts:
        part.forward = torch.compile(part.forward, dynamic=True, backend=graphs)
    bound.module.__dict__["_zellige_graphs"] = graphs
    return graphs


def _is_part(name: str, child: nn.Module) -> bool:
    """A feed-forward that acts on every token by itself: without convolutions."""
    return name in PARTS and not any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in child.modules())


def _backend(name: str) -> Callable[..., Any]:
    from torch._dynamo.backends.registry import lookup_backend

    found: Callable[..., Any] = lookup_backend(name)
    return found
