"""Sums: means of numbers whose sum overflows a float."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

_LARGEST = sys.float_info.max
_SHIFT = 64  # a total that overflows is divided by 2**_SHIFT


def added(total: float, power: int, other: float, other_power: int = 0) -> tuple[float, int]:
    """`total * 2**power + other * 2**other_power` as (total, power); the power is above 0 if the sum overflows a float."""
    wide = max(power, other_power)
    total, other = math.ldexp(total, power - wide), math.ldexp(other, other_power - wide)
    found = total + other
    if math.isinf(found) and math.isfinite(total) and math.isfinite(other):
        return math.ldexp(total, -_SHIFT) + math.ldexp(other, -_SHIFT), wide + _SHIFT
    return found, wide


def times(value: float, count: int) -> tuple[float, int]:
    """`value * count` as a total and a power of two."""
    found = value * count
    if math.isinf(found) and math.isfinite(value):
        return math.ldexp(value, -_SHIFT) * count, _SHIFT
    return found, 0


def share(total: float, power: int, count: int) -> float:
    """`total * 2**power / count`; NaN if `count` is 0."""
    if not count:
        return math.nan
    try:
        return math.ldexp(total / count, power)
    except OverflowError:  # by rounding
        return math.copysign(_LARGEST, total)


def sum_of(values: Sequence[float]) -> tuple[float, int]:
    """The sum of the values as a total and a power of two; NaN for infinities of both signs."""
    try:
        return math.fsum(values), 0
    except ValueError:
        return math.nan, 0
    except OverflowError:
        if any(map(math.isinf, values)):
            return sum(value for value in values if math.isinf(value)), 0
        return math.fsum([math.ldexp(value, -_SHIFT) for value in values]), _SHIFT


def mean_of(values: Sequence[float]) -> float:
    """The mean, even if the sum overflows a float; NaN if there are no values.

    Example:
        >>> mean_of([1e308, 1e308, 1e308]), mean_of([1.0, 2.0])
        (1e+308, 1.5)
    """
    total = sum(values)
    return total / len(values) if values and -_LARGEST <= total <= _LARGEST else share(*sum_of(values), len(values))


def between(low: float, high: float, weight: float) -> float:
    """`(1 - weight) * low + weight * high`, without overflow for finite numbers."""
    found = (1 - weight) * low + weight * high
    if -_LARGEST <= found <= _LARGEST or not (math.isfinite(low) and math.isfinite(high)):
        return found
    return math.copysign(_LARGEST, found)  # too large only by rounding
