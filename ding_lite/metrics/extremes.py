"""Extremes: kinds of statistics that keep the smallest or the largest number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from ding_lite.metrics.numbers import NumberStats


class _ExtremeStats(NumberStats):
    _pick: ClassVar[Any]

    def __init__(self, window: float | None = None) -> None:
        super().__init__(window)

    def _begin(self) -> None:
        self._value = math.nan

    def peek(self, compile: bool = True) -> Any:
        recent = self._recent()
        if self._value == self._value:
            recent.append(self._value)
        value = self._pick(recent) if recent else math.nan
        return value if compile else [value]

    def merge(self, incoming_stats: Sequence[_ExtremeStats]) -> None:
        if self._window is None:
            theirs = [other._value for other in incoming_stats]
            self._wait_for(incoming_stats)
        else:
            theirs = [other.peek() for other in incoming_stats]
        seen = [value for value in (self._value, *theirs) if value == value]
        self._value = self._pick(seen) if seen else math.nan
        self._has_any = True


class MinStats(_ExtremeStats):
    """The smallest of all values, or of the last `window` ones. NaN is ignored."""

    stats_cls_identifier = "min"
    _pick = staticmethod(min)

    def _add(self, value: float) -> None:
        self._has_any = True
        if not value >= self._value and value == value:
            self._value = value


class MaxStats(_ExtremeStats):
    """The largest of all values, or of the last `window` ones. NaN is ignored."""

    stats_cls_identifier = "max"
    _pick = staticmethod(max)

    def _add(self, value: float) -> None:
        self._has_any = True
        if not value <= self._value and value == value:
            self._value = value
