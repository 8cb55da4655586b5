"""The lines of a ledger: what one of them holds, read back from a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zellige_ray.errors import DataError
from zellige_ray.json_lines import parse_json

FORMAT = "zellige.ledger/1"
REWIND = "rewind"
QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Record:
    """One line: a committed step, or an event when `event` is set.

    An event holds no samples. `rewind` says that the run went back behind step `step`: later commits are void and their
    samples come again. `quarantined` names, in `detail`, a sample that can't be read: no pass owes it from then on.
    Other events (`joined`, `left`, `dropped`, `resumed`, ...) are notes. Units: seconds.
    """

    step: int
    pass_: int
    sample_ids: tuple[str, ...] = ()
    plan_hash: str = ""
    epoch: int = 0
    world_size: int = 0
    seconds: float = 0.0
    event: str | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values, keys as in the file."""
        value: dict[str, Any] = {
            "kind": "commit" if self.event is None else "event",
            "step": self.step,
            "pass": self.pass_,
        }
        if self.event is not None:
            value |= {"event": self.event}
        else:
            value |= {"samples": list(self.sample_ids), "plan": self.plan_hash}
        value |= {"epoch": self.epoch, "world_size": self.world_size, "seconds": round(self.seconds, 6)}
        return value | ({"detail": self.detail} if self.detail else {})

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Record:
        """The record of plain values. Raises KeyError, TypeError, ValueError or OverflowError for anything else."""
        event = str(value["event"]) if value["kind"] == "event" else None
        return cls(
            step=int(value["step"]),
            pass_=int(value["pass"]),
            sample_ids=tuple(map(str, value["samples"])) if event is None else (),
            plan_hash=str(value["plan"]) if event is None else "",
            epoch=int(value["epoch"]),
            world_size=int(value["world_size"]),
            seconds=float(value["seconds"]),
            event=event,
            detail=str(value.get("detail", "")),
        )


def read(path: str | Path) -> Iterator[Record]:
    """The records of a ledger, oldest first; a torn last line is left out.

    Raises DataError for an unreadable file, and for a broken line anywhere else, with its number.
    """
    for number, value in _lines(Path(path)):
        if value.get("kind") == "header":
            continue
        try:
            yield Record.from_json(value)
        except (KeyError, TypeError, ValueError, OverflowError) as fault:
            raise DataError(f"{path} line {number} is not a ledger record: {fault!r}") from fault


def read_header(path: str | Path) -> dict[str, Any]:
    """`format`, `fingerprint`, `ids`, and `ratios` of a mixture; empty when the ledger was made without an index."""
    empty: dict[str, Any] = {"format": FORMAT, "fingerprint": "", "ids": []}
    for _, value in _lines(Path(path)):
        return value if value.get("kind") == "header" else empty
    return empty


def valid_commits(records: Iterable[Record]) -> list[Record]:
    """Commits that count, oldest first: those after a rewound step are void."""
    commits: list[Record] = []
    for record in records:
        if record.event is None:
            commits.append(record)
        elif record.event == REWIND:
            commits = [c for c in commits if c.step <= record.step]
    return commits


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None where it is torn or no object."""
    try:
        value = parse_json(line.decode())
    except ValueError:  # also of bytes that are no text
        return None
    return value if isinstance(value, dict) else None


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as fault:
        raise DataError(f"cannot read the ledger {path}: {fault.strerror or fault}") from fault
    for number, line in enumerate(lines, start=1):
        value = parse_line(line)
        if value is not None:
            yield number, value
        elif number < len(lines):
            raise DataError(
                f"{path} line {number} is broken, and not the last: the ledger was changed by hand or by the disk"
            )
