"""Schedules: values that change during training."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal


def decayed_value(start: float, end: float, decay: float, step: float, kind: Literal["exp", "linear"] = "exp") -> float:
    """A value that changes from `start` to `end`.

        exp:    end + (start - end) * e^(-step / decay)
        linear: start + (end - start) * min(step / decay, 1)

    Args:
        start, end: the first and the last value.
        decay: number of steps, above 0, after which "linear" is at `end`, and "exp" has covered 63% of the difference.
        step: current step.
        kind: form of the schedule.

    Example:
        >>> decayed_value(1.0, 0.1, 100, 50, "linear")
        0.55
    """
    if kind == "linear":
        return start + (end - start) * min(step / decay, 1.0)
    return end + (start - end) * math.exp(-step / decay)


def piecewise_linear(points: Sequence[tuple[float, float]], step: float) -> float:
    """A piecewise linear value, constant before the first and after the last point.

    Args:
        points: (step, value) pairs, sorted by step. If two have the same step, the value jumps to that of the second.
        step: current step.

    Raises:
        ValueError: there are no points, or they are not sorted.

    Example:
        >>> [piecewise_linear([(0, 1.0), (100, 0.0)], step) for step in (-1, 25, 100, 200)]
        [1.0, 0.75, 0.0, 0.0]
    """
    steps = [at for at, _ in points]
    if not steps or not all(before <= after for before, after in pairwise(steps)):
        raise ValueError(f"piecewise_linear() wants one point (step, value) or more, sorted by step, got {list(points)}.")
    after = bisect_right(steps, step)
    if after in (0, len(points)):
        return points[max(after - 1, 0)][1]
    (begin, start), (end, stop) = points[after - 1], points[after]
    return start + (stop - start) * (step - begin) / (end - begin)
