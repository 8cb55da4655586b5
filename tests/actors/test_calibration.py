"""Calibration and rates: what steps teach the curves, what a strange worker or profile is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.actors.fake_pool import FakePool
from tests.actors.test_driver import make_config, of, run
from tests.placement.simulated import simulated_curves
from zellige_ray.actors.calibration import FEWEST, Calibration, Scale
from zellige_ray.actors.rates import curve_speeds, drifted, relative_speeds, wild_workers
from zellige_ray.errors import ConfigError
from zellige_ray.monitor.events import NoteEvent, RankTimes, StepEvent
from zellige_ray.placement import CostModel, HardwareProfile, ModelPreset, Plan, Prediction, RankLoad
from zellige_ray.placement.forecast import forecast
from zellige_ray.placement.profile_file import Profile, ProfileKey, matching_profile, read_profile, write_profile
from zellige_ray.training.profile_scope import Probe
from zellige_ray.training.profile_trials import halved_round

pytestmark = pytest.mark.usefixtures("own_profiles")

HARDWARE = HardwareProfile("m", 1, 2, 1 << 40, 1e12, 1e12, 1e9, 1e9, 0.0, curves=simulated_curves())
KEY = ProfileKey("cpu", "dit 4x4x32", "float32", "auto", 1, 2, 1, "2.13", "0.1")


def predicted(scale: Scale) -> Prediction:
    loads = [RankLoad(r, scale.linear * 1.0, scale.attention * 0.5, scale.exchange * 0.1, 0.0, 0, 0) for r in (0, 1)]
    return Prediction(2.0, 1.0, tuple(loads))


def feed(calibration: Calibration, factors: list[float]) -> list[bool]:
    """Steps whose token-wise work takes that many times what the profile says."""
    out = []
    for factor in factors:
        used = calibration.scale
        times = [RankTimes(r, factor, 0.5, 0.1 + 2 * r, 0.0, 1, 1) for r in (0, 1)]
        out.append(calibration.see(used, predicted(used), times))
    return out


def test_one_slow_step_changes_nothing() -> None:
    calibration = Calibration(HARDWARE)
    assert not any(feed(calibration, [1.0] * 4 + [9.0] + [1.0] * 6))
    assert calibration.hardware == HARDWARE and calibration.drift() == ""


def test_a_lasting_change_moves_the_curves_smoothly_and_is_said_once() -> None:
    calibration = Calibration(HARDWARE)
    changed = feed(calibration, [1.0] * 6 + [1.5] * 12)
    assert any(changed) and calibration.scale.linear == pytest.approx(1.5, rel=0.05)
    assert calibration.scale.attention == pytest.approx(1.0)
    assert calibration.scale.exchange == pytest.approx(1.0), "who waits for others says nothing about exchanges"
    assert calibration.hardware.curves is not None and HARDWARE.curves is not None
    now, then = calibration.hardware.curves.block_forward.tokens(100), HARDWARE.curves.block_forward.tokens(100)
    assert float(now) == pytest.approx(float(then) * calibration.scale.linear)
    assert "token-wise work takes 1.5" in calibration.drift()
    assert calibration.drift() == ""


def test_the_scale_of_exchanges_scales_all_of_them_so_that_it_settles() -> None:
    curves = simulated_curves(wander=0.02)
    plan = Plan(2, (halved_round(600, 4, [(0, 1)], text=1),), "shared")

    def exchange_s(scale: Scale) -> float:
        hardware = replace(HARDWARE, state="replicated", curves=scale.apply(curves))
        cost = CostModel(hardware, ModelPreset("m", 3, 128, 4, 4.0, "cross", 4, "none"))
        return forecast(plan, hardware.cluster(), cost).ranks[0].exchange_s

    assert exchange_s(Scale(exchange=3.0)) == pytest.approx(3 * exchange_s(Scale()), rel=0.01)


def test_few_steps_and_named_presets_teach_nothing() -> None:
    assert not any(feed(Calibration(HARDWARE), [3.0] * (FEWEST - 1)))
    assert not any(feed(Calibration(replace(HARDWARE, curves=None)), [3.0] * 20))


def test_a_worker_far_from_its_peers_is_named_with_its_figure_and_planned_for() -> None:
    probes = {f"worker-{i}": Probe("cpu", "2", s) for i, s in enumerate((1.0, 1.02, 2.5, 0.98))}
    (line,) = wild_workers(probes)
    assert line.startswith("worker-2 computes at 0.40 of the speed of its peers (cpu)")
    assert relative_speeds([p.reference_s for p in probes.values()]) == (1.0, 1.0, pytest.approx(0.4), 1.0)
    two = {"gpu": Probe("gpu", "2", 0.1), "cpu": Probe("cpu", "2", 1.0)}
    assert wild_workers(two) == [], "another device is no peer"


def test_speeds_come_from_whole_curves() -> None:
    slow = replace(simulated_curves(), block_forward=simulated_curves().block_forward.scaled(4.0))
    assert curve_speeds([simulated_curves(), slow, simulated_curves()]) == (1.0, pytest.approx(0.5), 1.0)


def test_the_driver_names_a_wild_worker_and_gives_it_less_from_the_first_step(tmp_path: Path) -> None:
    pool = FakePool()
    pool.slow = {"worker-1": 3.0}
    _, events = run(tmp_path, pool)
    notes = [e.text for e in of(NoteEvent, events) if e.level == "warning"]
    assert any(text.startswith("worker-1 computes at 0.33 of the speed of its peers") for text in notes)


def test_the_second_run_takes_the_profile_of_the_first(tmp_path: Path) -> None:
    first, second = FakePool(), FakePool()
    for name, pool in (("first", first), ("second", second)):
        folder = tmp_path / name
        folder.mkdir()
        run(folder, pool)
    assert [m for m, _ in first.calls].count("measure") == 1
    assert [m for m, _ in second.calls].count("measure") == 0


def test_a_profile_that_is_named_must_be_of_this_run(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    write_profile(path, Profile(KEY, HARDWARE))
    with pytest.raises(ConfigError, match=r"measured on something else: device is 'cpu' there, 'fake' here; model is"):
        run(tmp_path, FakePool(), placement={"profile": str(path)})
    with pytest.raises(ConfigError, match="name one of them"):
        make_config(placement={"profile": "a", "hardware": "cpu"})


def test_every_field_of_the_key_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    write_profile(path, Profile(KEY, HARDWARE))
    assert matching_profile(path, KEY).key == KEY
    others: dict[str, Any] = {"threads": 4, "torch": "2.14", "dtype": "bfloat16", "ranks": 8}
    for name, value in others.items():
        with pytest.raises(ConfigError, match=f"something else: {name} is"):
            matching_profile(path, replace(KEY, **{name: value}))


def test_an_interrupted_write_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.yaml"
    write_profile(path, Profile(KEY, HARDWARE))
    before = path.read_bytes()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_profile(path, Profile(replace(KEY, threads=9), HARDWARE))
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["p.yaml"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("format: zellige.profile/9\n", "format is 'zellige.profile/9', a profile's is 'zellige.profile/1'"),
        ("[1, 2]\n", "format is None"),
        ("format: zellige.profile/1\nkey: {}\n", "required and not given: hardware"),
        ("{", "cannot read profile"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_by_name(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=what):
        read_profile(path)


def test_a_device_that_is_no_longer_as_profiled_is_told_at_the_start() -> None:
    then = simulated_curves().layer_s(256, 8)
    assert drifted(HARDWARE, [Probe("cpu", "2", then * 1.1)]) == ""
    assert "0.50 times as fast as when they were profiled" in drifted(HARDWARE, [Probe("cpu", "2", then * 2)])


def test_steps_are_predicted_by_the_curves_of_the_run(tmp_path: Path) -> None:
    _, events = run(tmp_path, FakePool())
    assert all(e.predicted_s > 0 and e.planned for e in of(StepEvent, events))
