"""A plan: who owns which tokens and who computes which rectangle of attention, round by round.

In memory a round is a struct of int64 arrays; `Shard` and `Tile` are views made on demand. The JSON form is
`zellige.plan/1` (DESIGN section 8 of the format: a change of meaning is a new number).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zellige_ray.errors import PlanError

FORMAT = "zellige.plan/1"
DEFAULT_EXECUTOR = "exchange"

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Shard(NamedTuple):
    """Tokens [start, stop) of a sequence, owned by a rank for the token-wise layers."""

    sequence: int
    rank: int
    start: int
    stop: int


class Tile(NamedTuple):
    """A rectangle of a sequence's attention, heads x queries against all its keys, computed by a rank."""

    sequence: int
    rank: int
    head_start: int
    head_stop: int
    query_start: int
    query_stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One accumulation round: S sequences, their shards and tiles.

    tokens_S: attention lengths (visual, plus text when joint). text_tokens_S: caption lengths.
    shards_K4: rows (sequence index, rank, start, stop), sorted. tiles_M6: rows (sequence index, rank, head_start,
    head_stop, query_start, query_stop), sorted. executors: sequence id -> executor, where not the default exchange.
    first, second: ids of fillers whose attention runs during the exchange in, and during the exchange out.
    """

    ids: tuple[str, ...]
    tokens_S: IntArray
    text_tokens_S: IntArray
    shards_K4: IntArray
    tiles_M6: IntArray
    executors: Mapping[str, str] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for array in (self.tokens_S, self.text_tokens_S, self.shards_K4, self.tiles_M6):
            array.setflags(write=False)

    def shards(self) -> Iterator[Shard]:
        return (Shard(*row) for row in self.shards_K4.tolist())

    def tiles(self) -> Iterator[Tile]:
        return (Tile(*row) for row in self.tiles_M6.tolist())


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What one rank is predicted to do in a step. Units: seconds, bytes, tokens."""

    rank: int
    linear_s: float
    attention_s: float
    exchange_s: float
    idle_s: float
    peak_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """The timeline's verdict on a plan. Units: seconds."""

    step_s: float
    lower_bound_s: float
    ranks: tuple[RankLoad, ...]

    @property
    def gap(self) -> float:
        """step / lower bound - 1; 0 is perfect balance without any communication.

        Rounded to 12 places, because both are sums in different orders: a perfect plan has 0, not -2e-16.
        """
        return round(self.step_s / self.lower_bound_s - 1, 12) + 0.0 if self.lower_bound_s > 0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Placement of one batch on `world_size` ranks. Two plans are equal when their hashes are."""

    world_size: int
    rounds: tuple[Round, ...]
    policy: str
    epoch: int = 0
    predicted: Prediction | None = None
    hash: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash", plan_hash(self.world_size, self.rounds))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash[:15], 16)

    @property
    def num_sequences(self) -> int:
        return sum(len(r.ids) for r in self.rounds)


def plan_hash(world_size: int, rounds: tuple[Round, ...]) -> str:
    """sha256 of the canonical arrays; policy, prediction and epoch do not count."""
    digest = hashlib.sha256(f"{FORMAT}|{world_size}|{len(rounds)}".encode())
    for r in rounds:
        names = [list(r.ids), sorted(r.executors.items()), list(r.first), list(r.second)]
        digest.update(json.dumps(names, separators=(",", ":")).encode())
        for array in (r.tokens_S, r.text_tokens_S, r.shards_K4, r.tiles_M6):
            digest.update(np.int64(array.shape[0]).tobytes())
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return digest.hexdigest()


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values, format `zellige.plan/1`."""
    rounds = []
    for r in plan.rounds:
        rows: list[dict[str, Any]] = [
            {"id": i, "tokens": n, "text_tokens": t, "shards": [], "tiles": []}
            for i, n, t in zip(r.ids, r.tokens_S.tolist(), r.text_tokens_S.tolist(), strict=True)
        ]
        for name, executor in r.executors.items():
            rows[r.ids.index(name)]["executor"] = executor
        for s in r.shards():
            rows[s.sequence]["shards"].append({"rank": s.rank, "start": s.start, "stop": s.stop})
        for t in r.tiles():
            tile = {k: v for k, v in t._asdict().items() if k != "sequence"}
            rows[t.sequence]["tiles"].append(tile)
        entry: dict[str, Any] = {"sequences": rows}
        if r.first or r.second:
            entry["overlap"] = {"first": list(r.first), "second": list(r.second)}
        rounds.append(entry)
    out: dict[str, Any] = {
        "format": FORMAT,
        "world_size": plan.world_size,
        "epoch": plan.epoch,
        "policy": plan.policy,
        "hash": plan.hash,
        "rounds": rounds,
    }
    if plan.predicted is not None:
        p = plan.predicted
        out["predicted"] = {
            "step_s": p.step_s,
            "lower_bound_s": p.lower_bound_s,
            "ranks": [{k: getattr(x, k) for k in RankLoad.__slots__} for x in p.ranks],
        }
    return out


def plan_from_json(value: Mapping[str, Any]) -> Plan:
    """The plan of a JSON value; raises PlanError where the format, a field or the hash is not what it says."""
    if value.get("format") != FORMAT:
        raise PlanError(f"plan format is {value.get('format')!r}, this version reads {FORMAT!r}")
    try:
        rounds = tuple(_round_from_json(r) for r in value["rounds"])
        predicted = None
        if "predicted" in value:
            p = value["predicted"]
            predicted = Prediction(p["step_s"], p["lower_bound_s"], tuple(RankLoad(**x) for x in p["ranks"]))
        plan = Plan(value["world_size"], rounds, value.get("policy", "file"), value.get("epoch", 0), predicted)
    except (KeyError, TypeError, ValueError) as fault:
        raise PlanError(f"plan file is malformed: {type(fault).__name__} {fault}") from fault
    if value.get("hash") not in (None, "", plan.hash):
        raise PlanError(f"plan hash is {plan.hash[:12]}, the file says {str(value['hash'])[:12]}: it was edited")
    return plan


def _round_from_json(value: Mapping[str, Any]) -> Round:
    rows = value["sequences"]
    shards = sorted((i, s["rank"], s["start"], s["stop"]) for i, row in enumerate(rows) for s in row["shards"])
    tiles = sorted(
        (i, t["rank"], t["head_start"], t["head_stop"], t["query_start"], t["query_stop"])
        for i, row in enumerate(rows)
        for t in row["tiles"]
    )
    overlap = value.get("overlap", {})
    return Round(
        ids=tuple(str(row["id"]) for row in rows),
        tokens_S=np.array([row["tokens"] for row in rows], dtype=np.int64),
        text_tokens_S=np.array([row.get("text_tokens", 0) for row in rows], dtype=np.int64),
        shards_K4=np.array(shards, dtype=np.int64).reshape(-1, 4),
        tiles_M6=np.array(tiles, dtype=np.int64).reshape(-1, 6),
        executors={str(row["id"]): row["executor"] for row in rows if "executor" in row},
        first=tuple(overlap.get("first", ())),
        second=tuple(overlap.get("second", ())),
    )
