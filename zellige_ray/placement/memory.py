"""The memory model: what a rank holds at the fullest moment of a step, from what a round puts on it.

A step is fullest at one of a few moments: the backward of the last block's MLP, of its attention, the optimizer. What
is alive at each is linear in counts of tokens and rows: a model is the state and one row of coefficients per moment.
Rounds follow each other: the state persists, activations do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zellige_ray.errors import ConfigError
from zellige_ray.placement.cluster import Cluster
from zellige_ray.placement.hardware import State as Layout
from zellige_ray.placement.model import ModelPreset
from zellige_ray.placement.plan import FloatArray, IntArray, Round
from zellige_ray.placement.traffic import Traffic, fresh_heads

STATE_BYTES = 16  # per parameter: weight and gradient in 2 bytes each, master weight and two moments in 4 each
LIVE_BYTES = 82  # per token and channel: the layer that is being computed, forward or backward
# What a rank has in a round. Tokens: of all its pieces, of those that are whole sequences, of the captions that go with
# its pieces (an empty one counts 1), of the largest run of whole sequences of one length. Rows of one head: `wire` is
# the larger way of all exchanges, `in` goes to the tiles and `out` comes home, units are what its tiles attend with.
COUNTS = (
    "constant",
    "tokens",
    "wire_rows",
    "whole_tokens",
    "caption_tokens",
    "sequences",
    "whole_run_tokens",
    "unit_q_rows",
    "unit_kv_rows",
    "unit_run_rows",
    "sent_in_rows",
    "received_in_rows",
    "sent_out_rows",
    "received_out_rows",
)
FEW = 3  # the first ones, which come for nothing


@dataclass(frozen=True, slots=True)
class StateSize:
    """Parameters, gradients, optimizer and EMA. Units: bytes.

    whole: on every rank. sharded: one copy, divided by the ranks that share it: all, or with `by_node` those of a node.
    """

    whole: float
    sharded: float = 0.0
    by_node: bool = False

    def on_ranks(self, node_of_rank: Sequence[int]) -> FloatArray:
        """What each rank holds, [P]. Units: bytes."""
        _, place_P, sizes = np.unique(node_of_rank, return_inverse=True, return_counts=True)
        sharers_P = sizes[place_P] if self.by_node else len(node_of_rank)
        return np.asarray(self.whole + self.sharded / sharers_P + np.zeros(len(node_of_rank)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment that may be the fullest. row: bytes per unit of each of `COUNTS`, beside the state."""

    name: str
    row: tuple[float, ...]

    @classmethod
    def of(cls, name: str, **bytes_per: float) -> Moment:
        """The moment of named coefficients; the others are 0."""
        return cls(name, tuple(bytes_per.get(count, 0.0) for count in COUNTS))

    def of_count(self, count: str) -> float:
        return self.row[COUNTS.index(count)]


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Peak memory of ranks. overhead: what the allocator takes per byte that is asked for. measured: or by formula."""

    state: StateSize
    moments: tuple[Moment, ...]
    overhead: float = 1.0
    measured: bool = False

    def state_bytes(self, node_of_rank: Sequence[int]) -> FloatArray:
        """Parameters, gradients and optimizer on each rank, [P]. Units: bytes."""
        return self.state.on_ranks(node_of_rank) * self.overhead

    def token_bytes(self) -> float:
        """Activations of one token of a whole sequence, at the moment that holds most of it. Units: bytes."""
        return max(_per_token(m) for m in self.moments) * self.overhead

    def token_capacity(self, cluster: Cluster) -> FloatArray:
        """Tokens that fit on each rank beside its state, without exchange buffers, [P].

        Negative where not even the state fits.
        """
        room_P = np.array(cluster.memory_bytes) / self.overhead - self.state.on_ranks(cluster.node_of_rank)
        rooms = [(room_P - m.of_count("constant")) / _per_token(m) for m in self.moments if _per_token(m) > 0]
        return np.asarray(np.min(rooms, axis=0), dtype=np.float64)

    def work_bytes(self, round_: Round, traffic: Traffic, tokens_P: IntArray, rows_P: FloatArray) -> FloatArray:
        """Most that each rank has beside its state in a round, [P]. tokens_P, rows_P: tokens, larger way of its wire.

        Units: bytes.
        """
        table_MC = np.array([m.row for m in self.moments])
        counts_CP = np.stack([np.ones(len(tokens_P)), tokens_P, rows_P])
        if table_MC[:, FEW:].any():
            counts_CP = np.concatenate([counts_CP, count_more(round_, traffic, len(tokens_P))])
        peak_P = (table_MC[:, : len(counts_CP)] @ counts_CP).max(axis=0)
        return np.asarray(peak_P * self.overhead, dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; of each moment those coefficients that are not 0."""
        moments = [{"name": m.name, **{c: v for c, v in zip(COUNTS, m.row, strict=True) if v}} for m in self.moments]
        return {"state": asdict(self.state), "moments": moments, "overhead": self.overhead, "measured": self.measured}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> MemoryModel:
        """The model of plain values; raises ConfigError where they are none."""
        try:
            moments = tuple(_moment(m) for m in value["moments"])
            return cls(StateSize(**value["state"]), moments, float(value["overhead"]), bool(value["measured"]))
        except (KeyError, TypeError, ValueError) as fault:
            raise ConfigError(f"memory model: {type(fault).__name__} {fault}; measure it again") from fault


def preset_memory(model: ModelPreset, layout: Layout) -> MemoryModel:
    """By formula, where nothing was measured: AdamW with 16 bytes per parameter, two live layers' worth per token."""
    whole = STATE_BYTES * (4 + 2 * model.mlp_ratio) * model.hidden**2 * model.layers
    saved = 1.0 if model.checkpointing == "full" else 8 + 2 * model.mlp_ratio
    token = model.hidden * (saved * model.dtype_bytes * model.layers + LIVE_BYTES)
    row = model.hidden / model.heads * model.dtype_bytes
    state = StateSize(whole) if layout == "replicated" else StateSize(0.0, whole, by_node=layout == "hsdp")
    return MemoryModel(state, (Moment.of("formula", tokens=token, wire_rows=row),))


def count_more(round_: Round, traffic: Traffic, size: int) -> FloatArray:
    """The counts after the first few, [C, P]: what each rank has in a round."""
    shards, tiles, cut_S = round_.shards_K4, round_.tiles_M6, traffic.cut_S
    rank_K, length_K = shards[:, 1], shards[:, 3] - shards[:, 2]
    whole = ~cut_S[shards[:, 0]]
    follows = np.zeros(len(shards), dtype=bool)  # goes on where the shard before it ends: one piece
    follows[1:] = (shards[1:, :2] == shards[:-1, :2]).all(axis=1) & (shards[1:, 2] == shards[:-1, 3])
    pieces = shards[~follows]
    pairs = np.unique(shards[:, 1] * len(round_.ids) + shards[:, 0])
    tiles = tiles[cut_S[tiles[:, 0]]]
    q_M = (tiles[:, 3] - tiles[:, 2]) * (tiles[:, 5] - tiles[:, 4])
    kv_M = fresh_heads(tiles, 1) * round_.tokens_S[tiles[:, 0]] if len(tiles) else q_M
    sent, received = traffic.sent_WSR.sum(axis=1), traffic.received_WSR.sum(axis=1)
    return np.stack(
        [
            np.bincount(rank_K, weights=length_K * whole, minlength=size),
            np.bincount(pieces[:, 1], weights=np.maximum(round_.text_tokens_S, 1)[pieces[:, 0]], minlength=size),
            np.bincount(pairs // len(round_.ids), minlength=size),
            _largest(rank_K[whole], length_K[whole], length_K[whole], size),
            np.bincount(tiles[:, 1], weights=q_M, minlength=size),
            np.bincount(tiles[:, 1], weights=kv_M, minlength=size),
            _largest(tiles[:, 1], tiles[:, 0], q_M + 2 * kv_M, size),
            sent[0],
            received[0],
            sent[1],
            received[1],
        ]
    )


def _largest(rank_X: IntArray, run_X: IntArray, rows_X: IntArray, size: int) -> FloatArray:
    """Of each rank, the most rows that belong to one run."""
    out_P = np.zeros(size)
    if len(rank_X):
        keys, place_X = np.unique(np.stack([rank_X, run_X]), axis=1, return_inverse=True)
        np.maximum.at(out_P, keys[0], np.bincount(place_X.reshape(-1), weights=rows_X))
    return out_P


def _per_token(moment: Moment) -> float:
    return sum(moment.of_count(c) for c in ("tokens", "whole_tokens", "whole_run_tokens"))


def _moment(value: Mapping[str, Any]) -> Moment:
    unknown = set(value) - {"name", *COUNTS}
    if unknown:
        raise ValueError(f"unknown counts {sorted(unknown)}")
    return Moment.of(str(value["name"]), **{c: float(v) for c, v in value.items() if c != "name"})
