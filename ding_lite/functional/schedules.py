"""Schedules: numbers that change as training goes on.

Room: ding_lite.functional, floor 0. Imports nothing of ours.
"""

from __future__ import annotations

import math
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
