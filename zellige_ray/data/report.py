"""The encoding report: what became of every media file, counted and listed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from zellige_ray.data.cache import Entry
from zellige_ray.data.quarantine import Refused
from zellige_ray.words import counted


@dataclass(frozen=True, slots=True)
class Trim:
    """A clip that lost frames. had: frames that were there, "more than N" where the rest was not read."""

    id: str
    had: str
    used: int


@dataclass(frozen=True, slots=True)
class Resize:
    """A frame that lost pixels, `WIDTHxHEIGHT`. scaled: made smaller, otherwise only cropped at its edges."""

    id: str
    had: str
    used: str
    scaled: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """A caption that lost tokens."""

    id: str
    had: int
    used: int


@dataclass(frozen=True, slots=True)
class EncodeReport:
    """Numbers and lists of one encoding. written: encoded now. skipped: in the cache already.

    orphans: captions without a picture or clip of their name.
    """

    written: int
    skipped: int
    images: int
    videos: int
    tokens: int
    min_tokens: int
    max_tokens: int
    trimmed: tuple[Trim, ...]
    resized: tuple[Resize, ...]
    cut_captions: tuple[Cut, ...]
    uncaptioned: tuple[str, ...]
    ignored: tuple[str, ...]
    orphans: tuple[str, ...]
    quarantined: tuple[Refused, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def headlines(self) -> list[str]:
        """What was encoded, in three lines."""
        return self.lines()[:3]

    def warnings(self) -> list[str]:
        """What a person should look at: captions and files that were left out."""
        found = []
        if self.orphans:
            found.append(
                f"{counted(len(self.orphans), 'caption')} without a picture or clip of that name, left out: "
                + ", ".join(self.orphans[:3])
            )
        if self.quarantined:
            names = "; ".join(f"{r.file}: {r.reason}" for r in self.quarantined[:3])
            found.append(f"{counted(len(self.quarantined), 'file')} set aside, they can't be used ({names})")
        return found

    def lines(self) -> list[str]:
        """The report for a person, one fact per line."""
        samples = self.images + self.videos
        scaled = sum(size.scaled for size in self.resized)
        found = [
            f"{counted(samples, 'sample')}: {counted(self.images, 'image')}, {counted(self.videos, 'video')}; "
            f"{self.written} encoded now, "
            f"{self.skipped} were there ({self.seconds:.1f} s)",
            f"{self.tokens} visual tokens a pass, {self.min_tokens} to {self.max_tokens} per sample "
            f"({self.max_tokens / max(self.min_tokens, 1):.0f}x)",
            f"{counted(len(self.trimmed), 'clip')} trimmed, {counted(scaled, 'sample')} scaled down, "
            f"{len(self.resized) - scaled} cropped at the edge, {counted(len(self.cut_captions), 'caption')} cut",
        ]
        found += [f"  trimmed  {t.id}: {t.had} -> {t.used} frames" for t in self.trimmed]
        found += [f"  cut      {c.id}: caption of {c.had} -> {c.used} tokens" for c in self.cut_captions]
        if self.uncaptioned:
            found.append(f"{len(self.uncaptioned)} without a caption: {', '.join(self.uncaptioned[:5])}")
        if self.ignored:
            found.append(f"{counted(len(self.ignored), 'file')} ignored, no media: {', '.join(self.ignored[:5])}")
        found += [f"  caption without media: {name}" for name in self.orphans]
        found += [f"  quarantined  {r.file}: {r.reason}" for r in self.quarantined]
        return found


def make_report(
    entries: Iterable[Entry],
    tokens: Iterable[int],
    *,
    written: int,
    uncaptioned: tuple[str, ...],
    ignored: tuple[str, ...],
    orphans: tuple[str, ...],
    quarantined: Iterable[Refused],
    seconds: float,
) -> EncodeReport:
    """The report over all samples of a source, those encoded earlier included."""
    found, counts = list(entries), list(tokens)
    return EncodeReport(
        written=written,
        skipped=len(found) - written,
        images=sum(entry.media == "image" for entry in found),
        videos=sum(entry.media == "video" for entry in found),
        tokens=sum(counts),
        min_tokens=min(counts, default=0),
        max_tokens=max(counts, default=0),
        trimmed=tuple(
            Trim(e.id, f"more than {e.source_frames}" if e.more else str(e.source_frames), e.frames)
            for e in found
            if e.more or e.frames < e.source_frames
        ),
        resized=tuple(_resize(e) for e in found if (e.width, e.height) != (e.source_width, e.source_height)),
        cut_captions=tuple(
            Cut(e.id, e.caption_tokens, e.text_tokens) for e in found if e.text_tokens < e.caption_tokens
        ),
        uncaptioned=uncaptioned,
        ignored=ignored,
        orphans=orphans,
        quarantined=tuple(quarantined),
        seconds=seconds,
    )


def _resize(entry: Entry) -> Resize:
    had, used = f"{entry.source_width}x{entry.source_height}", f"{entry.width}x{entry.height}"
    return Resize(entry.id, had, used, scaled=entry.scaled)
