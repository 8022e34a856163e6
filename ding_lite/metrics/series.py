"""Series: kinds of statistics that keep values."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ding_lite.metrics.stats_base import WindowedStats, detached, fetched, off_device, plain_number
from ding_lite.metrics.sums import between

PERCENTILES = (0, 50, 75, 90, 95, 99, 100)
"""The percentiles for `percentiles=True`."""


_UNCHANGING = {float, int, bool, str, bytes, type(None)}


def _copied(value: Any) -> Any:
    """Copies of tensors, detached, and of arrays, also in lists, tuples and dicts; anything else unchanged."""
    if hasattr(value, "detach"):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return {name: _copied(one) for name, one in value.items()} if type(value) is dict else value


class _CollectedStats(WindowedStats):
    """Keeps values as they are now: of tensors and arrays, copies. Tensors are detached, and fetched when they are read."""

    def push(self, value: Any) -> None:
        self._values.append(value if type(value) in _UNCHANGING else _copied(value))

    def clear(self) -> None:
        self._values: deque[Any] = deque(maxlen=self._window)

    @property
    def is_empty(self) -> bool:
        return not self._values

    def reduce(self, compile: bool = True) -> Any:
        self._values = deque(map(off_device, self._values), self._values.maxlen)
        return super().reduce(compile)

    def get_state(self) -> dict[str, Any]:
        self._values = deque(map(off_device, self._values), self._values.maxlen)
        return super().get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        was_merged = self._window is not None and len(self._values) > self._window
        self._values = deque(self._values, None if was_merged else self._window)

    def merge(self, incoming_stats: Sequence[_CollectedStats]) -> None:
        if self._values.maxlen is not None:  # each component has its own window: after merging, all values of the cycle count
            self._values = deque(self._values)
        for other in incoming_stats:
            self._values.extend(other._values)


class ItemSeriesStats(_CollectedStats):
    """A list of all values in order, or of the last `window` ones, of any type. When merged, component after component."""

    stats_cls_identifier = "item_series"

    def __init__(self, window: float | None = None) -> None:
        super().__init__(window)

    def peek(self, compile: bool = True) -> Any:
        return [off_device(value) for value in self._values]


class ItemStats(_CollectedStats):
    """The last value, of any type; None before the first one. When merged, the value of the last component that has one."""

    stats_cls_identifier = "item"

    def __init__(self) -> None:
        super().__init__(1)
        del self.settings["window"]

    def peek(self, compile: bool = True) -> Any:
        value = off_device(self._values[-1]) if self._values else None
        return value if compile else [value]

    def merge(self, incoming_stats: Sequence[_CollectedStats]) -> None:
        super().merge(incoming_stats)
        self._values = deque(self._values, 1)


class PercentilesStats(_CollectedStats):
    """Percentiles of all values, or of the last `window` ones, interpolated between neighbours. NaN is ignored.

    Args:
        window: number of latest values that count; None for all.
        percentiles: numbers from 0 to 100; True for 0, 50, 75, 90, 95, 99 and 100.
    """

    stats_cls_identifier = "percentiles"

    def __init__(self, window: float | None = None, percentiles: bool | Iterable[float] = True) -> None:
        wanted = PERCENTILES if percentiles is True else percentiles
        found = [plain_number(it) for it in wanted] if isinstance(wanted, Iterable) and not isinstance(wanted, str) else []
        self._wanted = tuple(it for it in found if it is not None and 0 <= it <= 100)
        if not self._wanted or len(self._wanted) < len(found):
            raise ValueError(
                f"percentiles={percentiles!r}, expected numbers from 0 to 100 such as [50, 90], or True for the default ones."
            )
        super().__init__(window, percentiles=self._wanted)

    def push(self, value: Any) -> None:
        self._values.append(value if type(value) is float else detached(value, "reduce='percentiles'"))

    def peek(self, compile: bool = True) -> Any:
        values = [value for value in fetched(self._values) if value == value]
        if not compile:
            return values
        values = np.sort(np.array(values, np.float64)).tolist()  # ten times as fast as Python for a thousand numbers
        return {wanted: _percentile(values, wanted) for wanted in self._wanted}


def _percentile(values: Sequence[float], wanted: float) -> float:
    """The `wanted` percentile of the sorted values, with linear interpolation; NaN if there are none."""
    if not values:
        return math.nan
    place = wanted * (len(values) - 1) / 100
    share, below = math.modf(place)
    low, high = values[int(below)], values[min(int(below) + 1, len(values) - 1)]
    if not share or low == high:  # because in the formula 0 * inf is NaN
        return low
    return between(low, high, share)
