"""Previews beside training: planned once like a step, and the steps behind them are those of a run without previews."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.actors.local_pool import LocalPool
from tests.actors.test_invariance import curve, make_config, train
from tests.actors.tiny_data import write_cache
from zellige_ray.actors import planning
from zellige_ray.monitor.events import PreviewEvent

pytestmark = pytest.mark.dist


def test_the_steps_behind_a_preview_are_planned_once_and_bitwise_those_of_a_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, plain = write_cache(tmp_path / "cache"), planning.make_plan
    planned: list[tuple[str, ...]] = []

    def spy(rows: Any, *args: Any, **kwargs: Any) -> Any:
        planned.append(tuple(row.id for row in rows))
        return plain(rows, *args, **kwargs)

    monkeypatch.setattr(planning, "make_plan", spy)
    curves = {}
    for every in (None, 2):
        planned.clear()
        preview = {"every": every, "steps": 2, "count": 2}
        config = make_config(cache, 2, steps=6, preview=preview, placement={"hardware": "cpu"})
        folder = tmp_path / f"run-{every}"
        folder.mkdir()
        events, _ = train(folder, cache, config, LocalPool(config, str(cache.folder)))
        shown = [e for e in events if isinstance(e, PreviewEvent)]
        assert [e.step for e in shown] == ([2, 4, 6] if every else [])
        assert all((folder / name).is_file() for e in shown for name in e.files)
        assert len(planned) == len(set(planned)), "a batch was planned twice"
        curves[every] = curve(events)
    assert curves[2] == curves[None]
