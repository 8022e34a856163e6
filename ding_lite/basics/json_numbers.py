"""Numbers that JSON does not have, NaN and infinities, as text."""

from __future__ import annotations

import math
from typing import Any

SPELT = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Each of these numbers by the text used for it; the same as in Protocol Buffers and JavaScript."""

_EARLIER = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def json_number(number: float) -> float | str:
    """The number, or the text for it.

    Example:
        >>> [json_number(number) for number in (0.5, math.nan, math.inf, -math.inf)]
        [0.5, 'NaN', 'Infinity', '-Infinity']
    """
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def spelt_as_now(value: Any) -> Any:
    """Data of `json_ready`, also of a file of an earlier version, which spelt these numbers as Python does.

    Only for comparisons, because the text may also be a name.
    """
    if isinstance(value, str):
        return _EARLIER.get(value, value)
    if isinstance(value, dict):
        return {name: spelt_as_now(part) for name, part in value.items()}
    return [spelt_as_now(part) for part in value] if isinstance(value, list) else value
