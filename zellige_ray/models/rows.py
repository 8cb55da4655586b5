"""Rows: per-sequence values that act like one value per token, gathered only where they meet tokens.

A plain object with `__torch_function__`, not a tensor subclass: with torch.compile the subclass gave silently wrong
outputs, and an operation that is not listed here raises instead of guessing. Values stay [R, ...] through a model's own
arithmetic and are gathered by token at the multiplication or addition with the stream [1, T, D]; what is saved for
backward is the rows and the index, not [T, D].

Legend: R rows, T tokens of the packed stream, D width.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zellige_ray.errors import EngineError

MIN_TOKENS = 8  # a stream is padded to this with dummy tokens, so that its length can't be a table's 1, 2 or 6


@dataclass(frozen=True, slots=True, eq=False)
class TokenIndex:
    """Which row each token takes. runs: (start, stop, row) of equal neighbours, in order."""

    row_T: Tensor
    runs: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, row_T: Tensor) -> TokenIndex:
        rows, counts = torch.unique_consecutive(row_T, return_counts=True)
        stops = counts.cumsum(0).tolist()
        return cls(row_T, tuple(zip([0, *stops[:-1]], stops, rows.tolist(), strict=True)) if stops else ())

    @property
    def num_tokens(self) -> int:
        return self.row_T.shape[0]


class Rows:
    """value [R, ...] or [R, 1, D]; arithmetic stays on rows until it meets a stream [1, T, D].

    indexes: the streams it may meet (visual, text, both), by their lengths, which differ.
    """

    def __init__(self, value: Tensor, indexes: Mapping[int, TokenIndex]) -> None:
        self.value = value
        self.indexes = indexes

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def shape(self) -> torch.Size:
        """Of a batch of one: the model sees one packed sequence."""
        return torch.Size((1, *self.value.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    @property
    def device(self) -> torch.device:
        return self.value.device

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def view(self, *sizes: int) -> Rows:
        """Like a tensor's, for a batch of one: the first size is 1 and stands for the rows."""
        if sizes[0] != 1:
            raise EngineError(f"rows can't be viewed as {sizes}: a packed stream is a batch of 1")
        return Rows(self.value.reshape(self.value.shape[0], *sizes[1:]), self.indexes)

    reshape = view

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _binary and len(args) == 2 and not kwargs:
            return _combine(_binary[name], args[0], args[1])
        if name in _reflected and len(args) == 2 and not kwargs:
            return _combine(_binary[_reflected[name]], args[1], args[0])
        if name == "type_as" and isinstance(args[1], Rows):
            return args[0].type_as(args[1].value)
        if name in _by_row and isinstance(args[0], Rows):
            return _mapped(name, func, args[0], args[1:], kwargs or {})
        raise EngineError(f"an operation on per-sequence rows that is not known to be row by row: {func}")

    def __getattr__(self, name: str) -> Any:
        if name in _by_row:
            return lambda *args, **kwargs: _mapped(name, getattr(Tensor, name), self, args, kwargs)
        raise AttributeError(f"Rows has no {name!r}: an operation that is not known to be row by row")

    def __getitem__(self, key: Any) -> Rows:
        keys = key if isinstance(key, tuple) else (key,)
        if not keys or keys[0] != slice(None):
            raise EngineError(f"rows can't be indexed by {key!r}: the first index must be ':'")
        return Rows(self.value[keys], self.indexes)

    def __add__(self, other: Any) -> Any:
        return _combine(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _combine(operator.add, other, self)

    def __mul__(self, other: Any) -> Any:
        return _combine(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _combine(operator.mul, other, self)

    def __sub__(self, other: Any) -> Any:
        return _combine(operator.sub, self, other)


def _mapped(name: str, func: Any, rows: Rows, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An operation that acts on every row by itself."""
    place = _by_row[name]
    dim = kwargs.get("dim", args[place] if place is not None and len(args) > place else None)
    if dim is not None and dim in (0, -rows.value.ndim):
        raise EngineError(f"{name} along the batch dimension of per-sequence rows")
    out = func(rows.value, *(a.value if isinstance(a, Rows) else a for a in args), **kwargs)
    if isinstance(out, tuple | list):
        return type(out)(Rows(part, rows.indexes) for part in out)
    return Rows(out, rows.indexes)


def _combine(op: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    rows = left if isinstance(left, Rows) else right
    other = right if isinstance(left, Rows) else left
    if isinstance(other, Rows):
        return Rows(op(left.value, right.value), rows.indexes)
    if isinstance(other, Tensor) and _is_stream(other, rows):
        return _meet(op, rows, other, rows is left)
    if isinstance(other, Tensor) and other.ndim == rows.value.ndim and other.ndim > 0 and other.shape[0] != 1:
        raise EngineError(
            f"rows of {tuple(rows.value.shape)} met a tensor of {tuple(other.shape)}: no stream, no table"
        )
    return Rows(op(rows.value, other) if rows is left else op(other, rows.value), rows.indexes)


def _is_stream(other: Tensor, rows: Rows) -> bool:
    per_token = rows.value.ndim == 2 or (rows.value.ndim == 3 and rows.value.shape[1] == 1)
    return per_token and other.ndim == 3 and other.shape[0] == 1 and other.shape[1] in rows.indexes


def _meet(op: Callable[[Any, Any], Any], rows: Rows, stream_1TD: Tensor, rows_left: bool) -> Tensor:
    value_RD = rows.value.squeeze(1) if rows.value.ndim == 3 else rows.value
    index = rows.indexes[stream_1TD.shape[1]]
    if op is operator.mul:
        out: Tensor = _Scale.apply(stream_1TD, value_RD, index)  # type: ignore[no-untyped-call]
    elif op is operator.add:
        out = _Shift.apply(stream_1TD, value_RD, index)  # type: ignore[no-untyped-call]
    elif op is operator.sub and not rows_left:
        out = _Shift.apply(stream_1TD, -value_RD, index)  # type: ignore[no-untyped-call]
    else:
        raise EngineError(f"rows can't {op.__name__} with a stream of tokens")
    return out


class _Scale(torch.autograd.Function):
    """stream x rows; saves both and the index."""

    @staticmethod
    def forward(ctx: Any, stream_1TD: Tensor, value_RD: Tensor, index: TokenIndex) -> Tensor:
        ctx.save_for_backward(stream_1TD, value_RD)
        ctx.index = index
        return _by_run(torch.mul, stream_1TD, value_RD, index)

    @staticmethod
    def backward(ctx: Any, grad_1TD: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        stream_1TD, value_RD = ctx.saved_tensors
        d_stream = (
            _by_run(torch.mul, grad_1TD, value_RD, ctx.index).to(stream_1TD.dtype) if ctx.needs_input_grad[0] else None
        )
        d_value = _row_sums(grad_1TD, stream_1TD, value_RD, ctx.index) if ctx.needs_input_grad[1] else None
        return d_stream, d_value, None


class _Shift(torch.autograd.Function):
    """stream + rows; saves the index."""

    @staticmethod
    def forward(ctx: Any, stream_1TD: Tensor, value_RD: Tensor, index: TokenIndex) -> Tensor:
        ctx.index, ctx.like, ctx.dtype = index, torch.empty_like(value_RD, device="meta"), stream_1TD.dtype
        return _by_run(torch.add, stream_1TD, value_RD, index)

    @staticmethod
    def backward(ctx: Any, grad_1TD: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        d_value = _row_sums(grad_1TD, None, ctx.like, ctx.index) if ctx.needs_input_grad[1] else None
        return grad_1TD.to(ctx.dtype), d_value, None


def _by_run(op: Callable[..., Tensor], stream_1TD: Tensor, value_RD: Tensor, index: TokenIndex) -> Tensor:
    """op of each token and its row: run by run on CPU, so that no [T, D] of rows is made; one gather on CUDA."""
    if stream_1TD.is_cuda:
        return op(stream_1TD, value_RD.index_select(0, index.row_T).unsqueeze(0))
    dtype = torch.result_type(stream_1TD, value_RD)
    out_1TD = torch.empty_like(stream_1TD, dtype=dtype, memory_format=torch.contiguous_format)
    for start, stop, row in index.runs:
        op(stream_1TD[0, start:stop], value_RD[row], out=out_1TD[0, start:stop])
    return out_1TD


def _row_sums(grad_1TD: Tensor, factor_1TD: Tensor | None, like_RD: Tensor, index: TokenIndex) -> Tensor:
    """Sum of grad (x factor) over the tokens of each row, run by run in order: deterministic, no scatter-add."""
    out_RD = torch.zeros(like_RD.shape, dtype=like_RD.dtype, device=grad_1TD.device)
    for start, stop, row in index.runs:
        part = grad_1TD[0, start:stop]
        if factor_1TD is not None:
            part = part * factor_1TD[0, start:stop]
        out_RD[row] += part.sum(0)
    return out_RD


# name -> place of its `dim` among the arguments after the rows; None where it has none
_by_row: dict[str, int | None] = {
    "float": None,
    "double": None,
    "to": None,
    "type": None,
    "type_as": None,
    "contiguous": None,
    "chunk": 1,
    "unbind": 0,
    "unsqueeze": 0,
    "squeeze": 0,
    "unflatten": 0,
    "tanh": None,
    "neg": None,
    "silu": None,
    "gelu": None,
    "linear": None,
}
_binary: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "__add__": operator.add,
    "mul": operator.mul,
    "__mul__": operator.mul,
    "multiply": operator.mul,
    "sub": operator.sub,
    "__sub__": operator.sub,
}
_reflected = {"__radd__": "add", "__rmul__": "mul"}
