"""A batch as the planner sees it: checked sequences in canonical order, with their costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from zellige_ray.errors import PlanError
from zellige_ray.json_lines import is_number, parse_json, shown
from zellige_ray.placement.cost import CostModel
from zellige_ray.placement.plan import FloatArray, IntArray
from zellige_ray.placement.sequence import Sequence

MAX_TOKENS = 1 << 40  # of one sequence; sums of a batch stay far inside of int64
_OPTIONAL = {"text_tokens", "weight", "frames", "height", "width"}


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """S sequences, longest first, ties by id.

    tokens_S: attention lengths. linear_S, attention_S: seconds per layer of the whole sequence on a rank of speed 1.
    """

    ids: tuple[str, ...]
    tokens_S: IntArray
    text_tokens_S: IntArray
    linear_S: FloatArray
    attention_S: FloatArray

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index_K: IntArray) -> Batch:
        """The batch of some of the sequences; the order of the index must be ascending."""
        ids = tuple(self.ids[i] for i in index_K.tolist())
        return Batch(
            ids,
            self.tokens_S[index_K],
            self.text_tokens_S[index_K],
            self.linear_S[index_K],
            self.attention_S[index_K],
        )


def make_batch(sequences: Iterable[Sequence], cost: CostModel) -> Batch:
    """The batch of sequences in canonical order, so that their order of arrival never matters.

    Raises PlanError: an id twice, a length that is not a positive int, no sequence at all.
    """
    rows = sorted(sequences, key=attrgetter("id"))
    if not rows:
        raise PlanError("the batch has 0 sequences, at least 1 is needed")
    ids = tuple([s.id for s in rows])
    visual = tuple([s.tokens for s in rows])
    text = tuple([s.text_tokens for s in rows])
    _check(ids, visual, text)
    text_S = np.array(text, dtype=np.int64)
    tokens_S = np.array(visual, dtype=np.int64)
    if cost.model.text == "joint":
        tokens_S = tokens_S + text_S
    order = np.argsort(-tokens_S, kind="stable")
    tokens_S, text_S = tokens_S[order], text_S[order]
    return Batch(
        ids=tuple(ids[i] for i in order.tolist()),
        tokens_S=tokens_S,
        text_tokens_S=text_S,
        linear_S=cost.linear_s(tokens_S, text_S),
        attention_S=cost.attention_s(tokens_S),
    )


def read_batch(path: str | Path) -> tuple[Sequence, ...]:
    """Sequences of a JSON-lines file of rows `{"id", "tokens", "text_tokens", ...}`.

    Raises PlanError with the file, the line and what is wrong with it.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")  # JSON may hold other line separators
    except (OSError, UnicodeDecodeError) as fault:
        raise PlanError(f"cannot read batch {path}: {fault}") from fault
    return tuple(_row(f"{path} line {number}", line) for number, line in enumerate(lines, 1) if line.strip())


def _row(where: str, line: str) -> Sequence:
    try:
        value: Any = parse_json(line)
    except ValueError as fault:
        raise PlanError(f"{where}: not JSON: {fault}") from fault
    if not isinstance(value, dict) or not {"id", "tokens"} <= set(value):
        raise PlanError(f"{where}: a row needs the keys id and tokens, got {line.strip()[:80]}")
    unknown = sorted(set(value) - {"id", "tokens"} - _OPTIONAL)
    if unknown:
        raise PlanError(f"{where}: unknown key {unknown[0]!r}, known: id, tokens, {', '.join(sorted(_OPTIONAL))}")
    name, weight = value["id"], value.get("weight", 1.0)
    if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
        raise PlanError(f"{where}: id is {name!r}, it must be text or a whole number")
    if not is_number(weight, 0):
        raise PlanError(f"{where}: weight is {shown(weight)}, it must be a finite number of at least 0")
    return Sequence(str(name), value["tokens"], value.get("text_tokens", 0), float(weight))


def _check(ids: tuple[str, ...], visual: tuple[int, ...], text: tuple[int, ...]) -> None:
    if len(set(ids)) != len(ids):
        twice = next(a for a, b in itertools.pairwise(ids) if a == b)
        raise PlanError(f"sequence id {twice!r} occurs twice in the batch, ids must be unique")
    whole = set(map(type, visual)) | set(map(type, text)) == {int}
    if not whole or min(visual) < 1 or min(text) < 0 or max(max(visual), max(text)) > MAX_TOKENS:
        for name, tokens, texts in zip(ids, visual, text, strict=True):
            if type(tokens) is not int or tokens < 1:
                raise PlanError(
                    f"sequence {name!r} has tokens {shown(tokens)}, it must be a whole number of at least 1"
                )
            if type(texts) is not int or texts < 0:
                raise PlanError(
                    f"sequence {name!r} has text_tokens {shown(texts)}, it must be a whole number of at least 0"
                )
            if max(tokens, texts) > MAX_TOKENS:
                raise PlanError(
                    f"sequence {name!r} has {shown(max(tokens, texts))} tokens, at most {MAX_TOKENS} can be planned"
                )
