"""Asides: what a run does beside its steps: the held-out loss, previews, policies timed against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zellige_ray.actors.crew import CorruptSamples, Crew
from zellige_ray.actors.dispatch import Dispatch
from zellige_ray.actors.journal import Journal
from zellige_ray.config import RunConfig
from zellige_ray.data.index import Index, SampleMeta
from zellige_ray.data.sampler import Sampler
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.events import ComparisonEvent, HeldOutEvent, PreviewEvent

FIRST_HELD_OUT = 5  # the held-out loss is first measured after this step: before it, training has only found the scale
RIVALS = ("dp", "cp")


class Asides:
    """They change no weight; a sample that can't be read is left out of them."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        train: Index,
        held_out: Index,
        tokens: Callable[[SampleMeta], int],
        dispatch: Dispatch,
        crew: Crew,
        journal: Journal,
    ) -> None:
        self._config, self._folder, self._train, self._tokens = config, folder, train, tokens
        self._held_out = held_out.samples
        self._dispatch, self._crew, self._journal = dispatch, crew, journal

    def due(self, step: int) -> None:
        """Whatever is due behind a step."""
        config, last = self._config, step == self._config.steps
        due = step == min(FIRST_HELD_OUT, config.steps) or step % config.evaluate_every == 0
        if self._held_out and (due or last):
            try:
                _, replies, self._held_out = self._dispatch.run("held_out", self._held_out)
                self._journal.tell(HeldOutEvent(step, next(iter(replies.values())).value))
            except CorruptSamples:
                self._held_out = ()
        if config.preview.every is not None and (step % config.preview.every == 0 or last):
            self._preview(step)

    def compare(self) -> None:
        """Times policies against each other on batches that count for nothing, interleaved."""
        config = self._config
        policies = list(dict.fromkeys([config.placement.policy, *RIVALS]))
        aside = Sampler(self._train, config.batch, config.seed + 1, self._tokens).batches()
        seconds: dict[str, list[tuple[float, float]]] = {p: [] for p in policies}
        for turn in range(config.compare_batches):
            samples, _ = next(aside)
            for policy in policies[turn % len(policies) :] + policies[: turn % len(policies)]:
                planned, replies, samples = self._dispatch.run("rehearse", samples, policy=policy)
                assert planned.plan.predicted is not None
                measured = max(reply.value.seconds for reply in replies.values())
                seconds[policy].append((measured, planned.plan.predicted.step_s))
        if config.compare_batches:
            means = {p: (_mean(m for m, _ in s), _mean(q for _, q in s)) for p, s in seconds.items()}
            self._journal.tell(ComparisonEvent(config.compare_batches, means))

    def _preview(self, step: int) -> None:
        shown = preview_samples(self._held_out or self._train.samples, self._config.preview.count)
        try:
            _, replies, shown = self._dispatch.run("denoise", shown, steps=self._config.preview.steps)
        except CorruptSamples:
            return
        parts = [part for reply in replies.values() for part in reply.value]
        folder, files = f"{run_folder.PREVIEWS}/step-{step:06d}", []
        for rank, sample in enumerate(shown):
            args = (str(self._folder / folder), sample, [p for p in parts if p.sample == sample.id])
            files.append(f"{folder}/{self._crew.one(rank, 'render', args)[1]}")
        self._journal.show(PreviewEvent(step, tuple(files)))


def preview_samples(samples: Sequence[SampleMeta], count: int) -> tuple[SampleMeta, ...]:
    """Samples to show: images and videos in turn, the small ones first, so that a preview stays cheap."""
    by_size = sorted(samples, key=lambda s: (s.tokens(), s.id))
    images = [s for s in by_size if s.media == "image"]
    videos = [s for s in by_size if s.media == "video"]
    turns = [s for pair in zip(images, videos, strict=False) for s in pair]
    return tuple((turns + [s for s in by_size if s not in turns])[:count])


def _mean(values: Any) -> float:
    listed = list(values)
    return float(sum(listed) / len(listed))
