"""The cost model: seconds, bytes and memory of the parts of a plan, from a hardware profile and a model preset."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from zellige_ray.placement.hardware import HardwareProfile
from zellige_ray.placement.model import ModelPreset

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Compute and exchange of each pass as multiples of the forward pass: forward, (recompute,) backward.
COMPUTE = {"none": (1, 2), "full": (1, 1, 2)}
EXCHANGES = {"none": (1, 1), "full": (1, 1, 1)}
STATE_BYTES = 16  # per parameter: weight and gradient in 2 bytes each, master weight and two moments in 4 each
LIVE_BYTES = 82  # per token and channel: the layer that is being computed, forward or backward


@dataclass(frozen=True, slots=True)
class CostModel:
    """What work costs on a rank of speed 1.

    All times are per layer and summed over the passes of a step. overlap: does local attention run during the exchange.
    linear_token_s: token-wise layers, one token. cell_s: attention of one head x query x key. cross_token_s: one token
    against one text token (cross-attention). row_bytes: one head of one token on the wire. Units: seconds, bytes.
    """

    hardware: HardwareProfile
    model: ModelPreset
    overlap: bool = True
    linear_token_s: float = field(init=False)
    cell_s: float = field(init=False)
    cross_token_s: float = field(init=False)
    row_bytes: float = field(init=False)
    latency_s: float = field(init=False)

    def __post_init__(self) -> None:
        hw, m = self.hardware, self.model
        passes, exchanges = sum(COMPUTE[m.checkpointing]), sum(EXCHANGES[m.checkpointing])
        kv = 4 + 4 / m.head_group  # q and o are full, k and v shrink with their heads
        flops = {
            "linear_token_s": (kv + 4 * m.mlp_ratio) * m.hidden**2 * passes / hw.linear_flops,
            "cell_s": 4 * m.hidden / m.heads * passes / hw.attention_flops,
            "cross_token_s": 4 * m.hidden * passes / hw.attention_flops if m.text == "cross" else 0.0,
            "row_bytes": m.hidden / m.heads * m.dtype_bytes * exchanges,
            "latency_s": hw.message_latency_s * exchanges,
        }
        for name, value in flops.items():
            object.__setattr__(self, name, value)

    @property
    def compute_shares(self) -> tuple[float, ...]:
        """Share of a step's compute in each pass; they sum to 1."""
        weights = COMPUTE[self.model.checkpointing]
        return tuple(w / sum(weights) for w in weights)

    @property
    def exchange_shares(self) -> tuple[float, ...]:
        """Share of a step's exchange in each pass; they sum to 1."""
        weights = EXCHANGES[self.model.checkpointing]
        return tuple(w / sum(weights) for w in weights)

    def linear_s(self, tokens_S: IntArray, text_tokens_S: IntArray) -> FloatArray:
        """Token-wise seconds per layer of whole sequences, cross-attention to their text included."""
        return np.asarray(tokens_S * (self.linear_token_s + self.cross_token_s * text_tokens_S), dtype=np.float64)

    def attention_cell_s(self, tokens_S: IntArray) -> FloatArray:
        """Seconds per layer of one head x query x key of each sequence; longer sequences run at a better rate."""
        curve = self.hardware.attention_curve
        if not curve:
            return np.full(len(tokens_S), self.cell_s)
        lengths, shares = zip(*curve, strict=True)
        return np.asarray(self.cell_s / np.interp(tokens_S, lengths, shares), dtype=np.float64)

    def attention_s(self, tokens_S: IntArray) -> FloatArray:
        """Attention seconds per layer of whole sequences."""
        n_S = tokens_S.astype(np.float64)
        return self.attention_cell_s(tokens_S) * self.model.heads * n_S * n_S

    def state_bytes(self, world_size: int) -> float:
        """Parameters, gradients and optimizer on one rank. Units: bytes."""
        m = self.model
        whole = STATE_BYTES * (4 + 2 * m.mlp_ratio) * m.hidden**2 * m.layers
        return whole / world_size if self.hardware.state == "fsdp" else whole

    def token_bytes(self) -> float:
        """Activations of one token: what is saved for backward, and the layer being computed. Units: bytes."""
        m = self.model
        saved = 1.0 if m.checkpointing == "full" else 8 + 2 * m.mlp_ratio
        return m.hidden * (saved * m.dtype_bytes * m.layers + LIVE_BYTES)

    def wire_buffer_bytes(self, rows: FloatArray) -> FloatArray:
        """Buffers of one exchange that sends or receives that many (token, head) rows. Units: bytes."""
        return np.asarray(rows * (self.model.hidden / self.model.heads * self.model.dtype_bytes), dtype=np.float64)

    def token_capacity(self, memory_bytes: int, world_size: int) -> float:
        """Tokens that fit on a rank beside its state, without exchange buffers; negative when the state doesn't fit."""
        return (memory_bytes - self.state_bytes(world_size)) / self.token_bytes()
