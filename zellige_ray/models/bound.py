"""Bound: a module with its hooks in place, shared by all adapters; it holds the stream that is under way.

The stream is a plain attribute, not a context variable: recomputation may run in autograd's own thread. A checkpointed
block remembers the stream of its first run, so that several rounds may be forward before one goes backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor, nn

from zellige_ray.attention import AttentionEngine
from zellige_ray.attention.layer import Memo
from zellige_ray.errors import EngineError, ModelError
from zellige_ray.models import checkpointing, seam
from zellige_ray.models.adapter import Packed
from zellige_ray.models.rows import Rows
from zellige_ray.models.stream import Stream, make_stream

Checkpointing = Literal["none", "full", "attention"]


class Bound:
    """Call it with a packed batch and an engine.

    run: the adapter's way through the module. mode: checkpointing of its blocks. order: of a joint model, which half
    comes first.
    """

    def __init__(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        run: Callable[[nn.Module, Stream], Tensor],
        mode: Checkpointing = "none",
        order: str | None = None,
    ) -> None:
        if mode not in ("none", "full", "attention"):
            raise ModelError(f"unknown checkpointing {mode!r}, known are none, full, attention (model.checkpointing)")
        self.module = module
        self.blocks = list(blocks)
        self._run = run
        self._order = order
        self._stream: Stream | None = None
        self._tape: checkpointing.Tape | None = None
        if mode != "none":
            for block in self.blocks:
                checkpointing.install(block, lambda: functools.partial(self._entered, self.stream, _tape(mode)))

    def __call__(self, packed: Packed, engine: AttentionEngine) -> Tensor:
        stream = make_stream(packed, engine, self._order)
        with self._entered(stream):
            return stream.real(self._run(self.module, stream))

    @property
    def stream(self) -> Stream:
        """The stream under way; EngineError outside of a call."""
        if self._stream is None:
            raise EngineError("the model was called without a packed batch: call the bound model, not the module")
        return self._stream

    def attend(self, q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor) -> Tensor:
        """Self-attention of the stream under way, also for models that take it as an argument."""
        return self.stream.attend(q_TNH, k_TNH, v_TNH, self._memo())

    def catch_self_attention(self, module: nn.Module, name: str) -> None:
        """This module's attention is over the visual tokens of a sequence."""
        seam.install(module, name, self.attend)

    def catch_cross_attention(self, module: nn.Module, name: str) -> None:
        """This module's attention is from visual tokens to their caption."""
        seam.install(module, name, lambda q, k, v: self.stream.cross(q, k, v))

    def catch_joint_attention(self, module: nn.Module, name: str, mask: seam.Mask = "refuse") -> None:
        """This module's attention is over text and visual tokens. mask: ignore one known to be all ones."""
        seam.install(module, name, lambda q, k, v: self.stream.attend_jointly(q, k, v, self._memo()), mask)

    def catch_visual_attention(self, module: nn.Module, name: str) -> None:
        """This module of a joint model attends to visual tokens only."""
        seam.install(module, name, lambda q, k, v: self.stream.attend_within_pieces(q, k, v))

    def rows_from(self, module: nn.Module) -> None:
        """What this module returns, per row, becomes Rows; other outputs pass."""
        module.register_forward_hook(lambda _module, _args, out: self._as_rows(out))

    def keep_timesteps(self, module: nn.Module, scale: float = 1.0) -> None:
        """This module's first argument is the timestep, times `scale`, as exact as it was packed.

        For models that round it to the type of their tokens, where 777 of 1000 is 776 in bfloat16.
        """

        def exact(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self.stream.timestep_R * scale, *args[1:])

        module.register_forward_pre_hook(exact)

    def _as_rows(self, out: Any) -> Any:
        if isinstance(out, tuple):
            return tuple(self._as_rows(x) for x in out)
        rows = self.stream.timestep_R.shape[0]
        return (
            Rows(out, self.stream.indexes)
            if isinstance(out, Tensor) and out.ndim == 2 and out.shape[0] == rows
            else out
        )

    def _memo(self) -> Memo | None:
        return self._tape.take() if self._tape is not None else None

    @contextmanager
    def _entered(self, stream: Stream, tape: checkpointing.Tape | None = None) -> Iterator[None]:
        before = self._stream, self._tape
        self._stream, self._tape = stream, tape
        if tape is not None:
            tape.rewind()
        try:
            yield
        finally:
            self._stream, self._tape = before


def _tape(mode: Checkpointing) -> checkpointing.Tape | None:
    return checkpointing.Tape() if mode == "attention" else None


def bind_once(module: nn.Module, make: Callable[[Checkpointing], Bound], mode: Checkpointing | None = None) -> Bound:
    """The module's Bound, made at the first call; it lives as long as the module. mode: default what `build` noted."""
    known: Any = module.__dict__.get("_zellige_bound")
    if known is None:
        known = make(mode or module.__dict__.get("_zellige_checkpointing", "none"))
        module.__dict__["_zellige_bound"] = known
    bound: Bound = known
    return bound


def remember_checkpointing(module: nn.Module, mode: Checkpointing) -> None:
    """Note what the configuration asks for, for `bind_once`."""
    module.__dict__["_zellige_checkpointing"] = mode
