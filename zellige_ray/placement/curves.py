"""Curves: measured seconds as piecewise linear functions that never fall and are never negative.

Between two points a curve is a line, before the first it is level, after the last it goes on with the last slope. The
points come out of an isotonic regression (pool adjacent violators), because noise may make more work look cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zellige_ray.errors import ConfigError

FloatArray = NDArray[np.float64]
SWEEPS = 8  # of the regression of a surface, rows and columns in turn


@dataclass(frozen=True, slots=True)
class Curve:
    """y over x; x ascends, y never falls. Raises ConfigError for points that are no such curve."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.x or len(self.x) != len(self.y):
            raise ConfigError(f"a curve needs as many x as y and at least one, got {len(self.x)} and {len(self.y)}")
        _check_axis("x", self.x)
        if not all(map(math.isfinite, self.y)) or min(self.y) < 0 or (np.diff(self.y) < 0).any():
            raise ConfigError(f"a curve's y must be finite, not negative and never fall, got {list(self.y)}")

    def __call__(self, at: ArrayLike) -> FloatArray:
        """The values at any points, of any shape."""
        x, y = np.array(self.x), np.array(self.y)
        at_X = np.asarray(at, dtype=np.float64)
        beyond = np.maximum(at_X - x[-1], 0.0) * self.slope
        return np.asarray(np.interp(at_X, x, y) + beyond, dtype=np.float64)

    @property
    def slope(self) -> float:
        """Of what follows the last point: the last one, or that of the whole curve where its end is level."""
        if len(self.x) == 1:
            return self.y[0] / self.x[0] if self.x[0] > 0 else 0.0
        last = (self.y[-1] - self.y[-2]) / (self.x[-1] - self.x[-2])
        return last if last > 0 else (self.y[-1] - self.y[0]) / (self.x[-1] - self.x[0])

    def scaled(self, factor: float) -> Curve:
        """All values times a positive factor."""
        return Curve(self.x, tuple(v * factor for v in self.y))

    def to_list(self) -> list[list[float]]:
        """Points [x, y]."""
        return [[a, float(f"{b:.6g}")] for a, b in zip(self.x, self.y, strict=True)]

    @classmethod
    def from_list(cls, where: str, value: Any) -> Curve:
        """The curve of points [x, y]; raises ConfigError, naming `where`."""
        try:
            points = [(float(a), float(b)) for a, b in value]
            return cls(tuple(a for a, _ in points), tuple(b for _, b in points))
        except (TypeError, ValueError) as fault:
            raise ConfigError(f"{where} must be a list of [x, seconds], got {value!r}") from fault
        except ConfigError as fault:
            raise ConfigError(f"{where}: {fault}") from fault


@dataclass(frozen=True, slots=True)
class Surface:
    """Seconds over (queries, keys) on a grid, bilinear; never falling in either. Beyond the grid its last slopes."""

    queries: tuple[float, ...]
    keys: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        grid = np.array([list(row) for row in self.values], dtype=np.float64)
        if grid.shape != (len(self.queries), len(self.keys)) or min(grid.shape) < 2:
            raise ConfigError(
                f"a surface over {len(self.queries)} queries x {len(self.keys)} keys, at least 2 each, has {grid.shape}"
            )
        _check_axis("queries", self.queries)
        _check_axis("keys", self.keys)
        falls = (np.diff(grid, axis=0) < 0).any() or (np.diff(grid, axis=1) < 0).any()
        if not np.isfinite(grid).all() or grid.min() < 0 or falls:
            raise ConfigError("a surface's values must be finite, not negative and never fall")

    def __call__(self, queries: ArrayLike, keys: ArrayLike) -> FloatArray:
        """The values at pairs of queries and keys; below the grid its first lines."""
        grid = np.array(self.values)
        i, u = _place(np.array(self.queries), queries)
        j, v = _place(np.array(self.keys), keys)
        low = grid[i, j] * (1 - u) + grid[i + 1, j] * u
        high = grid[i, j + 1] * (1 - u) + grid[i + 1, j + 1] * u
        return np.asarray(np.maximum(low * (1 - v) + high * v, 0.0), dtype=np.float64)

    def scaled(self, factor: float) -> Surface:
        """All values times a positive factor."""
        return Surface(self.queries, self.keys, tuple(tuple(x * factor for x in row) for row in self.values))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        rows = [[float(f"{x:.6g}") for x in row] for row in self.values]
        return {"queries": list(self.queries), "keys": list(self.keys), "seconds": rows}

    @classmethod
    def from_dict(cls, where: str, value: Any) -> Surface:
        """The surface of plain values; raises ConfigError, naming `where`."""
        try:
            axes = [tuple(float(x) for x in value[k]) for k in ("queries", "keys")]
            return cls(axes[0], axes[1], tuple(tuple(float(x) for x in row) for row in value["seconds"]))
        except (TypeError, KeyError, ValueError) as fault:
            raise ConfigError(f"{where} must have queries, keys and a grid of seconds, got {value!r}") from fault
        except ConfigError as fault:
            raise ConfigError(f"{where}: {fault}") from fault


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean of several curves, at the points of the first."""
    x = curves[0].x
    return Curve(x, tuple(np.mean([curve(x) for curve in curves], axis=0).tolist()))


def mean_surface(surfaces: Sequence[Surface]) -> Surface:
    """The mean of several surfaces, on the grid of the first."""
    queries, keys = surfaces[0].queries, surfaces[0].keys
    q, k = np.meshgrid(queries, keys, indexing="ij")
    rows = np.mean([surface(q, k) for surface in surfaces], axis=0).tolist()
    return Surface(queries, keys, tuple(map(tuple, rows)))


def fit_curve(name: str, points: Mapping[float, float]) -> Curve:
    """The curve nearest to measured seconds. Raises ConfigError naming what was measured where it can't be true."""
    xs = sorted(points)
    for x in xs:
        _check_timing(name, f"{x:g}", points[x])
    return Curve(tuple(map(float, xs)), tuple(isotonic([points[x] for x in xs])))


def rise(name: str, points: Mapping[float, float]) -> Curve:
    """The curve of what was measured in addition to the first point, which becomes zero; falls become level."""
    xs = sorted(points)
    for x in xs:
        if not math.isfinite(points[x]):
            raise ConfigError(f"profile: {name} at {x:g} took {points[x]} s; it must be finite")
    first = points[xs[0]]
    return Curve(tuple(map(float, xs)), tuple(isotonic([max(0.0, points[x] - first) for x in xs])))


def fit_surface(name: str, points: Mapping[tuple[float, float], float]) -> Surface:
    """The surface of measured seconds over (queries, keys), a whole grid. Raises ConfigError like `fit_curve`."""
    queries, keys = (sorted({point[k] for point in points}) for k in (0, 1))
    for (q, k), seconds in points.items():
        _check_timing(name, f"{q:g} queries x {k:g} keys", seconds)
    grid = np.array([[points[q, k] for k in keys] for q in queries])
    for _ in range(SWEEPS):
        grid = np.array([isotonic(row) for row in grid.tolist()])
        grid = np.array([isotonic(row) for row in grid.T.tolist()]).T
    grid = np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)
    return Surface(tuple(map(float, queries)), tuple(map(float, keys)), tuple(map(tuple, grid.tolist())))


def isotonic(values: Sequence[float]) -> list[float]:
    """The never falling sequence with the least squared distance: pool adjacent violators."""
    pools: list[tuple[float, int]] = []  # (mean, count), ascending means
    for value in values:
        mean, count = float(value), 1
        while pools and pools[-1][0] > mean:
            before, n = pools.pop()
            mean, count = (before * n + mean * count) / (n + count), n + count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def _check_timing(name: str, at: str, seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"profile: {name} at {at} took {seconds} s; a timing must be positive and finite")


def _check_axis(name: str, axis: Sequence[float]) -> None:
    if not all(map(math.isfinite, axis)) or min(axis) < 0 or (np.diff(axis) <= 0).any():
        raise ConfigError(f"{name} must be finite, not negative and ascend, got {list(axis)}")


def _place(axis: FloatArray, at: ArrayLike) -> tuple[NDArray[np.int64], FloatArray]:
    """The cell of each value on an axis, and how far into it: above 1 beyond the last line."""
    at_X = np.maximum(np.asarray(at, dtype=np.float64), axis[0])
    i = np.clip(np.searchsorted(axis, at_X, side="right") - 1, 0, len(axis) - 2)
    return i, (at_X - axis[i]) / (axis[i + 1] - axis[i])
