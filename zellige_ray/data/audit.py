"""The audit: what a ledger proves about every pass over the data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from zellige_ray.data.record import QUARANTINED, Record, read, read_header, valid_commits


@dataclass(frozen=True, slots=True)
class PassReport:
    """One walk over the data set: a left pass owes every sample once, the current one none twice."""

    pass_: int
    complete: bool
    samples: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """What a ledger proves."""

    steps: int
    samples: int
    complete_passes: int
    samples_lost: int
    samples_doubled: int
    samples_unknown: int
    steps_doubled: int
    steps_missing: int
    steps_replayed: int
    epochs: int
    world_sizes: tuple[int, ...]
    seconds: float
    passes: tuple[PassReport, ...]
    events: tuple[Record, ...]

    @property
    def ok(self) -> bool:
        """No sample lost, doubled or unknown; every step once."""
        return not (
            self.samples_lost
            or self.samples_doubled
            or self.samples_unknown
            or self.steps_doubled
            or self.steps_missing
        )


def verify(path: str | Path, ids: Iterable[str] | None = None) -> LedgerReport:
    """Checks a ledger against the training ids: those given, else its header's, else all that it mentions.

    A pass owes all of its samples once a later pass has begun, but for those that were found unreadable.
    Raises DataError like `read`.
    """
    records = list(read(path))
    commits = valid_commits(records)
    known = set(read_header(path)["ids"]) if ids is None else set(ids)
    refused = {record.detail for record in records if record.event == QUARANTINED}
    known = known or {sample for commit in commits for sample in commit.sample_ids}
    used: dict[int, Counter[str]] = {}
    for commit in commits:
        used.setdefault(commit.pass_, Counter()).update(commit.sample_ids)
    newest = max(used, default=0)
    passes = []
    for pass_ in range(newest + 1):
        counts = used.get(pass_, Counter())
        missing = tuple(sorted(known - refused - counts.keys()))
        doubled = tuple(sorted(sample for sample, times in counts.items() if times > 1))
        unknown = tuple(sorted(counts.keys() - known))
        lost = missing if pass_ < newest else ()
        whole = bool(counts) and not missing and not doubled and not unknown
        passes.append(PassReport(pass_, whole, counts.total(), lost, doubled, unknown))
    steps = Counter(commit.step for commit in commits)
    span = max(steps) - min(steps) + 1 if steps else 0
    return LedgerReport(
        steps=len(steps),
        samples=sum(p.samples for p in passes),
        complete_passes=sum(p.complete for p in passes),
        samples_lost=sum(len(p.lost) for p in passes),
        samples_doubled=sum(used.get(p.pass_, Counter())[s] - 1 for p in passes for s in p.doubled),
        samples_unknown=sum(len(p.unknown) for p in passes),
        steps_doubled=steps.total() - len(steps),
        steps_missing=span - len(steps),
        steps_replayed=sum(r.event is None for r in records) - len(commits),
        epochs=len({commit.epoch for commit in commits}),
        world_sizes=tuple(sorted({commit.world_size for commit in commits})),
        seconds=sum(commit.seconds for commit in commits),
        passes=tuple(passes),
        events=tuple(record for record in records if record.event is not None),
    )
