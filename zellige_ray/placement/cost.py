"""The cost model: seconds and bytes of the parts of a plan, from a hardware profile and a model preset."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from zellige_ray.errors import ConfigError
from zellige_ray.placement.hardware import HardwareProfile
from zellige_ray.placement.memory import MemoryModel, preset_memory
from zellige_ray.placement.model import ModelPreset
from zellige_ray.placement.plan import FloatArray, IntArray
from zellige_ray.placement.planning_costs import planning_costs

# Compute and exchange of each pass as multiples of the forward pass: forward, (recompute,) backward.
COMPUTE = {"none": (1, 2), "full": (1, 1, 2)}
EXCHANGES = {"none": (1, 1), "full": (1, 1, 1)}


@dataclass(frozen=True, slots=True)
class CostModel:
    """What work costs on a rank of speed 1.

    All times are per layer and summed over the passes of a step. overlap: does local attention run during the exchange.
    linear_token_s: token-wise layers, one token. cell_s: attention of one head x query x key. cross_token_s: one token
    against one text token (cross-attention). piece_s: one piece of a sequence, whatever it holds. row_bytes: one head
    of one token on the wire. memory: what ranks hold; by formula where none was measured. Seconds are by the hardware
    profile's curves where it has some, else by FLOPs. Units: seconds, bytes.
    """

    hardware: HardwareProfile
    model: ModelPreset
    overlap: bool = True
    measured_memory: MemoryModel | None = None
    linear_token_s: float = field(init=False)
    cell_s: float = field(init=False)
    cross_token_s: float = field(init=False)
    piece_s: float = field(init=False)
    attention_curve: tuple[tuple[float, float], ...] = field(init=False)
    row_bytes: float = field(init=False)
    latency_s: float = field(init=False)
    memory: MemoryModel = field(init=False)

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
        values: dict[str, Any] = {**flops, "piece_s": 0.0, "attention_curve": hw.attention_curve}
        if hw.curves is not None:
            for name, ours, theirs in (("hidden", m.hidden, hw.curves.width), ("heads", m.heads, hw.curves.heads)):
                if ours != theirs:
                    raise ConfigError(
                        f"the curves of hardware {hw.name!r} were measured with {name} {theirs}, model {m.name!r} has "
                        f"{ours}; measure this model with `zellige profile`"
                    )
            values |= asdict(planning_costs(hw.curves, m))
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "memory", self.measured_memory or preset_memory(m, hw.state))

    def meeting_s(self, layer_s: float) -> float:
        """What ranks wait for each other in one direction of a layer's exchanges, beside bytes and messages.

        layer_s: work of a layer, in whose two exchanges of every pass they meet. Only measured curves know of it.
        """
        if self.hardware.curves is None:
            return 0.0
        passes = len(EXCHANGES[self.model.checkpointing])
        return passes * self.hardware.curves.wander * math.sqrt(layer_s / (2 * passes))

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
        token_s = self.linear_token_s + self.cross_token_s * text_tokens_S
        return np.asarray(tokens_S * token_s + self.piece_s, dtype=np.float64)

    def attention_cell_s(self, tokens_S: IntArray) -> FloatArray:
        """Seconds per layer of one head x query x key of each sequence; longer sequences run at a better rate."""
        if not self.attention_curve:
            return np.full(len(tokens_S), self.cell_s)
        lengths, shares = zip(*self.attention_curve, strict=True)
        return np.asarray(self.cell_s / np.interp(tokens_S, lengths, shares), dtype=np.float64)

    def attention_s(self, tokens_S: IntArray) -> FloatArray:
        """Attention seconds per layer of whole sequences."""
        n_S = tokens_S.astype(np.float64)
        return self.attention_cell_s(tokens_S) * self.model.heads * n_S * n_S
