"""The seam: where a diffusers attention module hands its q, k, v over, without a global patch.

`install` gives one module instance a `forward` inside which a TorchFunctionMode catches
`F.scaled_dot_product_attention`. Modes belong to the running thread, so recomputation under checkpointing works in
whichever thread autograd uses, and nothing outlives the call. A module that returns without having passed the seam used
another backend: refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from zellige_ray.errors import EngineError

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v [T, N, H] -> o [T, N, H]
Mask = Literal["refuse", "ignore"]


class _Catch(TorchFunctionMode):
    def __init__(self, name: str, attend: Attend, mask: Mask) -> None:
        super().__init__()
        self.mask = mask
        self.name = name
        self.attend = attend
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        return self._attention(*args, **(kwargs or {}))

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if (attn_mask is not None and self.mask == "refuse") or dropout_p or is_causal or enable_gqa:
            raise EngineError(f"{self.name}: packed attention has neither mask, dropout, causality nor grouped heads")
        if scale is not None and abs(scale * query.shape[-1] ** 0.5 - 1) > 1e-6:
            raise EngineError(f"{self.name}: scale {scale} is not 1 / sqrt({query.shape[-1]})")
        if query.shape[0] != 1:
            raise EngineError(f"{self.name}: a packed stream has batch size 1, got {query.shape[0]}")
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # a select would be zeros in backward
        return self.attend(q, k, v).transpose(0, 1).unsqueeze(0)


def install(module: nn.Module, name: str, attend: Attend, mask: Mask = "refuse") -> None:
    """Send the module's attention to `attend`; class, weights and state-dict keys stay as they are."""
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _Catch(name, attend, mask) as catch:
            out = original(*args, **kwargs)
        if catch.calls == 0:
            raise EngineError(
                f"{name}: attention bypassed F.scaled_dot_product_attention; set its diffusers backend to 'native'"
            )
        return out

    module.forward = forward
