"""The audit: what a ledger proves about every pass over the data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zellige_ray.data.index import data_set_of
from zellige_ray.data.order import as_held
from zellige_ray.data.record import QUARANTINED, Record, read, read_header, valid_commits


@dataclass(frozen=True, slots=True)
class PassReport:
    """One walk over a data set: a left pass owes every sample once, the current one none twice.

    data_set: of a mixture, whose pass it is; empty where there is one. repeats: how often samples came again.
    """

    data_set: str
    pass_: int
    complete: bool
    samples: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    unknown: tuple[str, ...]
    repeats: int


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

    A pass owes all of its samples once a later pass has begun, but for those that were found unreadable. In a mixture
    each data set has passes of its own, which its drawn samples name. Raises DataError like `read`.
    """
    records = list(read(path))
    commits = valid_commits(records)
    header = read_header(path)
    known = set(header["ids"]) if ids is None else set(ids)
    known = known or {sample for commit in commits for sample in commit.sample_ids}
    place = _in_mixture if header.get("ratios") else _alone
    used: dict[str, dict[int, Counter[str]]] = {}
    for commit in commits:
        for sample in commit.sample_ids:
            name, pass_, held = place(sample, commit.pass_)
            used.setdefault(name, {}).setdefault(pass_, Counter())[held] += 1
    owed: dict[str, set[str]] = {name: set() for name in used}
    for sample in known:
        owed.setdefault(place(sample, 0)[0], set()).add(sample)
    refused = {place(record.detail, 0)[2] for record in records if record.event == QUARANTINED}
    passes = [one for name in sorted(owed) for one in _passes(name, owed[name], refused, used.get(name, {}))]
    steps = Counter(commit.step for commit in commits)
    span = max(steps) - min(steps) + 1 if steps else 0
    return LedgerReport(
        steps=len(steps),
        samples=sum(p.samples for p in passes),
        complete_passes=sum(p.complete for p in passes),
        samples_lost=sum(len(p.lost) for p in passes),
        samples_doubled=sum(p.repeats for p in passes),
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


def _passes(name: str, owed: set[str], refused: set[str], used: Mapping[int, Counter[str]]) -> Iterator[PassReport]:
    """What became of every pass over one data set, the newest included."""
    newest = max(used, default=0)
    for pass_ in range(newest + 1):
        counts = used.get(pass_, Counter())
        missing = tuple(sorted(owed - refused - counts.keys()))
        doubled = tuple(sorted(sample for sample, times in counts.items() if times > 1))
        unknown = tuple(sorted(counts.keys() - owed))
        lost = missing if pass_ < newest else ()
        whole = bool(counts) and not missing and not doubled and not unknown
        repeats = counts.total() - len(counts)
        yield PassReport(name, pass_, whole, counts.total(), lost, doubled, unknown, repeats)


def _alone(sample: str, pass_: int) -> tuple[str, int, str]:
    return "", pass_, sample


def _in_mixture(sample: str, pass_: int) -> tuple[str, int, str]:
    """(data set, its own pass, id in the index) of a sample that a commit or the header names."""
    held, own = as_held(sample)
    return data_set_of(held), own, held
