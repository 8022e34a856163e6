"""Curves: the seeds of one experiment on a common grid, with their interquartile mean and a confidence band."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ding_lite.reports.rows import Numbers

_RESAMPLES, _SEED, _LEVEL = 1000, 0, 0.95
_LARGE, _SMALLER = 1e280, 2.0**-60  # numbers above _LARGE are multiplied by _SMALLER before they are summed
_AT_ONCE = 2_000_000  # maximum number of resampled values in memory


@dataclass(frozen=True)
class Curve:
    """The aggregate of several seeds, over a common x."""

    x: Numbers
    """[P] strictly increasing."""

    mean: Numbers
    """[P] interquartile mean over the seeds that have a value at this x."""

    low: Numbers
    """[P] lower end of the 95% band."""

    high: Numbers
    """[P] upper end of the 95% band."""

    is_whole: np.ndarray
    """[P] bool: whether every seed was measured at this x; else seeds have not begun, have ended, or keep their last value."""

    seeds: tuple[tuple[Numbers, Numbers], ...]
    """(x, y) of each seed, as measured, with fewer points if there are many."""


def aggregate_seeds(
    seeds: Sequence[tuple[Numbers, Numbers]], *, held: Sequence[bool] = (), points: int = 300, smooth: int = 1
) -> Curve | None:
    """The curve of several seeds; None if no seed has a value.

    Between two measurements of a seed its value is interpolated linearly, because repeating the last value would make runs with
    fewer measurements look slower. A seed does not count before its first measurement. It does not count after its last one
    either, unless it is held, for example because the run ended at its goal.

    Args:
        seeds: (x, y) of each seed, x strictly increasing, y finite.
        held: for each seed, whether it keeps its last value up to the end of the longest seed; False by default.
        points: maximum size of the grid: every x of any seed, or this number of evenly spaced ones if there are more.
        smooth: window of the moving mean, in measurements: each value and those before it.
    """
    room = _room(*(y for _, y in seeds))
    pairs = [(x, moving_mean(y * room, smooth)) for x, y in seeds]
    holding = [hold for hold, (x, _) in zip([*held, *[False] * len(seeds)], pairs) if len(x)]
    pairs = [(x, y) for x, y in pairs if len(x)]
    if not pairs:
        return None
    grid = np.unique(np.concatenate([x for x, _ in pairs]))
    if len(grid) > points:
        grid = np.linspace(grid[0], grid[-1], points)
    measured = np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in pairs])
    value = np.stack([np.where((grid > x[-1]) & hold, y[-1], row) for row, (x, y), hold in zip(measured, pairs, holding)])
    low, high = bootstrap_band(value)
    is_whole = np.isfinite(measured).all(0)
    thinned = [thin(x, y, points) for x, y in pairs]
    return Curve(grid, iqm(value) / room, low / room, high / room, is_whole, tuple((x, y / room) for x, y in thinned))


def _room(*values: Numbers) -> float:
    """A power of two; multiplied by it, which is exact, these numbers have sums and differences that do not overflow."""
    return _SMALLER if any(y.size and np.abs(y[np.isfinite(y)]).max(initial=0) > _LARGE for y in values) else 1.0


def iqm(value: Numbers) -> Numbers:
    """Interquartile mean over the first axis: the mean of the middle half of the values.

    Each of n sorted values covers 1/n of the distribution. Its weight is the part of this between the quartiles: of four
    values, the two in the middle count; of three, the weights are 1/6, 2/3 and 1/6; of one or two, it is the mean. NaN is
    ignored; NaN if there is no other value.

    Args:
        value: [N, ...] float.

    Reference:
        Agarwal et al. (2021), https://arxiv.org/abs/2108.13264.

    Example:
        >>> float(iqm(np.array([0.0, 6.0, 90.0])))
        19.0
    """
    room = _room(value)
    ordered = np.sort(value * room, axis=0)  # NaN comes last
    present = np.isfinite(ordered)
    count = present.sum(0)
    place = np.arange(len(value)).reshape(-1, *[1] * (value.ndim - 1))
    weight = np.minimum(4 * (place + 1), 3 * count) - np.maximum(4 * place, count)  # integers with the sum 2 * count
    weight = np.where(present, np.maximum(weight, 0), 0)
    total = (weight * np.where(present, ordered, 0)).sum(0)
    return np.where(count > 0, total / np.maximum(2 * count, 1) / room, np.nan)


def bootstrap_band(value: Numbers) -> tuple[Numbers, Numbers]:
    """The 95% percentile bootstrap interval of the interquartile mean, from 1000 resamples of the seeds with replacement.

    A resample takes all points of a seed. The resamples are deterministic, and do not depend on the order of the seeds. With a
    single seed, the interval has no width.

    Args:
        value: [N, P] or [N] float; NaN is ignored.

    Returns:
        low, high, each [P] or a scalar; NaN if no seed has a value.
    """
    room = _room(value)
    rows = value.reshape(len(value), -1) * room
    rows = rows[np.lexsort(rows.T[::-1])]
    draw = np.random.default_rng(_SEED).integers(len(rows), size=(_RESAMPLES, len(rows)))
    low, high = np.empty((2, rows.shape[1]))
    width = max(_AT_ONCE // draw.size, 1)
    for begin in range(0, rows.shape[1], width):
        part = slice(begin, begin + width)
        means = iqm(np.moveaxis(rows[draw, part], 1, 0))
        low[part], high[part] = _quantiles(means, rows[:, part])
    return low.reshape(value.shape[1:]) / room, high.reshape(value.shape[1:]) / room


def _quantiles(means: Numbers, rows: Numbers) -> Numbers:
    """Quantiles [2, P] of the resampled means; resamples without a value are ignored."""
    outer = [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]
    found = np.full((2, means.shape[1]), np.nan)
    whole, some = np.isfinite(means).all(0), np.isfinite(rows).any(0)
    found[:, whole] = np.quantile(means[:, whole], outer, axis=0)
    for place in np.flatnonzero(some & ~whole):
        column = means[:, place]
        found[:, place] = np.quantile(column[np.isfinite(column)], outer)
    return found


def moving_mean(y: Numbers, window: int) -> Numbers:
    """The mean of each value and up to `window - 1` values before it."""
    if window <= 1 or not len(y):
        return y
    # Sums from both ends of sections of `window` values. A window lies in two of them, so that its sum has no value of another
    # one: a difference of running totals would lose small values behind a large one.
    size = min(window, len(y))
    sections = np.concatenate([y, np.zeros(-len(y) % size)]).reshape(-1, size)
    until = np.cumsum(sections, axis=1).ravel()
    since = np.cumsum(sections[:, ::-1], axis=1)[:, ::-1].ravel()
    last = np.arange(len(y))
    first = last - size + 1
    total = until[last] + np.where((first > 0) & (first % size != 0), since[first], 0.0)
    mean: Numbers = total / np.minimum(last + 1, size)
    return mean


def thin(x: Numbers, y: Numbers, points: int) -> tuple[Numbers, Numbers]:
    """About `points` of the points: the first, the last, and the minimum and maximum of each section, so that no peak is
    lost."""
    if len(x) <= points:
        return x, y
    edges = np.linspace(0, len(x), max(points // 2, 1) + 1).astype(int)
    keep = {0, len(x) - 1}
    for begin, end in itertools.pairwise(edges):
        keep |= {begin + int(np.argmin(y[begin:end])), begin + int(np.argmax(y[begin:end]))}
    places = sorted(keep)
    return x[places], y[places]
