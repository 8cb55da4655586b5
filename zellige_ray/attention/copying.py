"""Copying: rows between a tensor and a wire buffer, one strided copy per rectangle."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from zellige_ray.attention.tables import Copy, Sum


def write_wire(copies: Iterable[Copy], rows_RD: Tensor, wire_WD: Tensor) -> None:
    """Rows -> their places on the wire."""
    for copy in copies:
        _on_wire(wire_WD, copy).copy_(_in_rows(rows_RD, copy))


def read_wire(copies: Iterable[Copy], wire_WD: Tensor, rows_RD: Tensor) -> None:
    """Wire -> rows, each row once."""
    for copy in copies:
        _in_rows(rows_RD, copy).copy_(_on_wire(wire_WD, copy))


def read_sums(sums: Iterable[Sum], away_WD: Tensor, own_WD: Tensor, rows_RD: Tensor) -> None:
    """Wire -> rows; where there are several copies, their sum in that order, in float32 or wider."""
    wide = torch.float64 if rows_RD.dtype == torch.float64 else torch.float32
    for total in sums:
        copy, own = total.parts[0]
        out, value = _in_rows(rows_RD, copy), _on_wire(own_WD if own else away_WD, copy)
        if len(total.parts) > 1:
            value = value.to(wide, copy=True)
            for copy, own in total.parts[1:]:
                value += _on_wire(own_WD if own else away_WD, copy)
        out.copy_(value)


def _in_rows(rows_RD: Tensor, copy: Copy) -> Tensor:
    D = rows_RD.shape[-1]
    shape, strides = (copy.heads, copy.tokens, D), (copy.cell_head * D, copy.cell_token * D, 1)
    return rows_RD.as_strided(shape, strides, rows_RD.storage_offset() + copy.cell * D)


def _on_wire(wire_WD: Tensor, copy: Copy) -> Tensor:
    D = wire_WD.shape[-1]
    shape, strides = (copy.heads, copy.tokens, D), (copy.wire_head * D, D, 1)
    return wire_WD.as_strided(shape, strides, wire_WD.storage_offset() + copy.wire * D)
