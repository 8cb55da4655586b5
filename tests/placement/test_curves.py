"""Curves: what holds for every set of timings, and which timings are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.placement.simulated import simulated_curves
from zellige_ray.errors import ConfigError
from zellige_ray.placement.curves import Curve, Surface, fit_curve, fit_surface, isotonic, mean_curve
from zellige_ray.placement.step_curves import mean_step_curves, parse_step_curves

timings = st.floats(1e-6, 10.0)
points = st.dictionaries(st.integers(0, 10_000), timings, min_size=1, max_size=12)


@given(points, st.lists(st.floats(0, 1e6), min_size=2, max_size=9))
def test_a_fitted_curve_never_falls_and_is_never_negative(points: dict[float, float], at: list[float]) -> None:
    curve = fit_curve("x", points)
    values = curve(np.sort(at))
    assert (np.diff(values) >= -1e-12).all() and (values >= 0).all()
    assert min(points.values()) - 1e-12 <= curve(min(points)) and curve(max(points)) <= max(points.values()) + 1e-12


@given(st.lists(timings, min_size=1, max_size=20))
def test_the_regression_keeps_the_mean_and_what_ascends_already(values: list[float]) -> None:
    assert np.mean(isotonic(values)) == pytest.approx(np.mean(values))
    assert isotonic(sorted(values)) == pytest.approx(sorted(values))


def test_between_points_a_line_beyond_them_the_last_slope_also_where_the_end_is_level() -> None:
    curve = Curve((10.0, 20.0, 40.0), (1.0, 2.0, 6.0))
    assert curve([0, 15, 30, 50]) == pytest.approx([1.0, 1.5, 4.0, 8.0])
    assert Curve((0.0, 10.0, 20.0), (0.0, 4.0, 4.0))(30) == pytest.approx(4.0 + 10 * 0.2)


@given(st.floats(1e-9, 1e-6), st.floats(0, 1e-3), st.floats(1, 20_000), st.floats(1, 20_000))
def test_a_surface_repeats_products_exactly_inside_and_beyond_its_grid(a: float, b: float, q: float, k: float) -> None:
    grid = {(x, y): b + a * x * y for x in (1.0, 64.0, 900.0) for y in (1.0, 300.0, 4000.0)}
    surface = fit_surface("x", {point: s + 1e-12 for point, s in grid.items()})
    assert float(surface(q, k)) == pytest.approx(b + a * q * k, rel=1e-6, abs=1e-10)


def test_noise_that_makes_more_work_look_cheaper_is_levelled() -> None:
    surface = fit_surface("x", {(1, 1): 2.0, (1, 2): 1.0, (2, 1): 1.5, (2, 2): 3.0})
    rows = np.array(surface.values)
    assert (np.diff(rows, axis=0) >= 0).all() and (np.diff(rows, axis=1) >= 0).all()


@pytest.mark.parametrize("seconds", [0.0, -1e-3, math.nan, math.inf])
def test_a_timing_that_cannot_be_true_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"block forward at 64 took .* a timing must be positive and finite"):
        fit_curve("block forward", {32: 1.0, 64: seconds})
    with pytest.raises(ConfigError, match=r"attention at 8 queries x 64 keys took"):
        fit_surface("attention", {(8, 8): 1.0, (8, 64): seconds, (16, 8): 1.0, (16, 64): 2.0})


def test_curves_come_back_from_their_plain_values_and_bad_ones_are_named() -> None:
    curves = parse_step_curves("curves", simulated_curves().to_dict())  # six digits
    value = curves.to_dict()
    assert parse_step_curves("curves", value) == curves
    value["block_forward"] = {**value["block_forward"], "tokens": [[0, 1.0], [10, 0.5]]}
    with pytest.raises(ConfigError, match=r"curves.block_forward.tokens: .*never fall"):
        parse_step_curves("curves", value)
    with pytest.raises(ConfigError, match=r"unknown key 'hiden', the nearest known key is 'hidden'"):
        parse_step_curves("curves", {**curves.to_dict(), "hiden": 1.0})


def test_the_mean_of_ranks_is_the_mean_of_every_curve() -> None:
    slow, fast = simulated_curves(), simulated_curves(round_s=2.0)
    both = mean_step_curves([slow, fast])
    assert both.round_s == 1.0 and both.width == slow.width and both.block_forward == slow.block_forward
    assert mean_curve([Curve((0.0, 2.0), (0.0, 2.0)), Curve((0.0, 4.0), (0.0, 8.0))])(2) == pytest.approx(3.0)


def test_a_surface_needs_a_whole_grid() -> None:
    with pytest.raises(ConfigError, match="at least 2 each"):
        Surface((1.0,), (1.0, 2.0), ((1.0, 2.0),))
