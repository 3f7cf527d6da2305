"""Grids of options: every point, or a few that cover all pairs, with readable names.

A *point* has a value for every axis. Most defects show with one value of an option or with two together (Kuhn, Wallace
and Gallo, "Software fault interactions and implications for software testing", 2004), so a few points in which every
two values of two axes meet find nearly as much as the whole grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeconform.errors import UsageError

__all__ = ["covering", "every_point", "name_of", "run_each"]

Point = dict[str, Any]


def every_point(
    axes: Mapping[str, Sequence[Any]], *, allowed: Callable[[Point], bool] | None = None
) -> list[Point]:
    """Every allowed combination, in the order of the axes and of their values.

    Raises:
        UsageError: an axis has no value.
    """
    for name, values in axes.items():
        if not values:
            raise UsageError(f"axis {name!r} has no values; leave it out, or give it one")
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [point for point in points if allowed is None or allowed(point)]


def covering(
    axes: Mapping[str, Sequence[Any]], *, allowed: Callable[[Point], bool] | None = None
) -> list[Point]:
    """A few allowed points in which all pairs of values of two axes occur that are allowed; always the same points.

    Greedy: each point is the first of those that add the most new pairs. Meant for up to about 100,000 points.

    Raises:
        UsageError: an axis has no value.
    """
    points = every_point(axes, allowed=allowed)
    if len(axes) < 2 or len(points) < 2:
        return points
    pairs = _pairs(axes, points)
    missing = np.zeros(int(pairs.max()) + 1, dtype=bool)
    missing[pairs] = True
    chosen = []
    while missing.any():
        best = int(missing[pairs].sum(axis=1).argmax())
        chosen.append(points[best])
        missing[pairs[best]] = False
    return chosen


def _pairs(axes: Mapping[str, Sequence[Any]], points: Sequence[Point]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A number for every pair of values of every point: shape [points, pairs of axes]."""
    places = np.array([[list(axes[name]).index(point[name]) for name in axes] for point in points])
    columns, first = [], 0
    for (i, one), (j, other) in itertools.combinations(enumerate(axes.values()), 2):
        columns.append(first + places[:, i] * len(other) + places[:, j])
        first += len(one) * len(other)
    return np.stack(columns, axis=1)


def name_of(point: Mapping[str, Any]) -> str:
    """A point as text for a test's id: ``strategy=full-prefetch-no_offload``."""
    return "-".join(_word(name, value) for name, value in point.items())


def _word(name: str, value: Any) -> str:
    match value:
        case True:
            return name
        case False:
            return f"no_{name}"
        case None:
            return f"{name}=none"
    return f"{name}={getattr(value, '__name__', None) or value}".replace(" ", "_")


def run_each(points: Iterable[Mapping[str, Any]], body: Callable[..., Any]) -> None:
    """Call ``body(**point)`` for every point, and report all points that failed, by name.

    On ranks, a point that fails on only one of them may leave the others waiting; the test then hangs.

    Raises:
        UsageError: there is no point.
        AssertionError: with a line for every point that failed; the first failure is its cause.
    """
    failed: dict[str, Exception] = {}
    given = list(points)
    if not given:
        raise UsageError("there are no points to run; a test without points would always pass")
    for point in given:
        try:
            body(**point)
        except Exception as error:
            failed[name_of(point)] = error
    if failed:
        lines = [f"{name}: {type(error).__name__}: {error}" for name, error in failed.items()]
        raise AssertionError("\n".join([f"{len(failed)} of {len(given)} failed", *lines])) from next(
            iter(failed.values())
        )
