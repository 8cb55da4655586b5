"""Buffers: what one attention layer holds, in bytes per count of a round; it mirrors `layer`, line by line.

Sends are counted until their exchange is over, which is the latest that they may live. Sums of shared heads' gradients
are left out: they come when everything else is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from zellige_ray.placement.memory import Moment


@dataclass(frozen=True, slots=True)
class LayerBuffers:
    """Of a model with this many heads. row: one head of one token. lse: its log-sum-exp. Units: bytes."""

    heads: int
    row: int
    lse: int

    def kept(self) -> dict[str, float]:
        """q, k, v and log-sum-exp of whole sequences, beside the output, which every token has: forward to backward."""
        return {"whole_tokens": self.heads * (3.0 * self.row + self.lse)}

    def units(self) -> dict[str, float]:
        """Operands, output and log-sum-exp of the tiles: forward to backward."""
        return {"unit_q_rows": 2.0 * self.row + self.lse, "unit_kv_rows": 2.0 * self.row}

    def backward(self) -> tuple[Moment, ...]:
        """Moments of backward, beside what is alive when the layer is entered: the gradient of its output included."""
        return tuple(self._moment(name, rows) for name, rows in _BACKWARD.items())

    def _moment(self, name: str, rows: dict[str, float]) -> Moment:
        """rows: heads of a token per count, gradients of q, k, v beside."""
        all_rows = {"tokens": 3.0, **rows}
        wide = ("tokens", "whole_run_tokens")  # counts of tokens, all heads each
        return Moment.of(name, **{c: n * self.row * (self.heads if c in wide else 1) for c, n in all_rows.items()})


_BACKWARD: dict[str, dict[str, float]] = {
    "fillers while gradients come in": {"received_out_rows": 1, "unit_q_rows": 1, "whole_run_tokens": 3},
    "gradients of units read": {"unit_q_rows": 2},
    "tiles": {"unit_q_rows": 2, "unit_kv_rows": 2, "unit_run_rows": 1},
    "gradients of units packed": {"unit_q_rows": 2, "unit_kv_rows": 4, "sent_in_rows": 1},
    "fillers while gradients go home": {
        "sent_in_rows": 1,
        "unit_q_rows": 1,
        "unit_kv_rows": 2,
        "whole_run_tokens": 3,
    },
}
