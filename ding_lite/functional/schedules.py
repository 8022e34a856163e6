"""Schedules: numbers that change as training goes on."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal


def decayed(start: float, end: float, decay: float, step: float, kind: Literal["exp", "linear"] = "exp") -> float:
    """A value that goes from `start` towards `end`.

        exp:    end + (start - end) * e^(-step / decay)
        linear: start + (end - start) * min(step / decay, 1)

    Args:
        decay: in steps: where "linear" arrives, and "exp" has come 63% of the way; above 0.

    Example:
        >>> decayed(1.0, 0.1, 100, 50, "linear")
        0.55
    """
    if kind == "linear":
        return start + (end - start) * min(step / decay, 1.0)
    return end + (start - end) * math.exp(-step / decay)


def piecewise(points: Sequence[tuple[float, float]], step: float) -> float:
    """A value that goes from point to point in straight lines, and stays outside of them.

    Args:
        points: (step, value), sorted by step. Where two share a step, the value jumps there to that of the later.

    Raises:
        ValueError: there are no points, or they are not sorted.

    Example:
        >>> [piecewise([(0, 1.0), (100, 0.0)], step) for step in (-1, 25, 100, 200)]
        [1.0, 0.75, 0.0, 0.0]
    """
    steps = [at for at, _ in points]
    if not steps or not all(before <= after for before, after in pairwise(steps)):
        raise ValueError(f"piecewise() wants one point (step, value) or more, sorted by step, got {list(points)}.")
    after = bisect_right(steps, step)
    if after in (0, len(points)):
        return points[max(after - 1, 0)][1]
    (begin, start), (end, stop) = points[after - 1], points[after]
    return start + (stop - start) * (step - begin) / (end - begin)
