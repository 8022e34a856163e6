"""Totals: kinds of statistics that add up numbers as they come.

Room: ding_lite.metrics, floor 1. Imports the room's bases and throughputs; otherwise the standard library.
"""

from __future__ import annotations

import abc
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

from ding_lite.metrics.bases import StatsBase, checked_window, detached, fetched
from ding_lite.metrics.throughputs import Throughput

_PENDING = 1000  # tensors that wait at most; then they are fetched from their device, all at once


class _NumberStats(StatsBase):
    """Of numbers. Without a window they are added up as they come; with one, the last ones are kept.

    The value of a tensor on another device is fetched when it is needed, also after it was handed on: to ask for it would wait
    for the device. What comes after it waits too, so that the order stays. Values in a window wait as long as they are in it.
    """

    def __init__(self, window: float | None = None, **settings: Any) -> None:
        window = checked_window(window)
        super().__init__(window=window, **settings)
        self._window = window
        self.clear()

    def push(self, value: Any) -> None:
        if type(value) is float and self._waiting is None:
            self._add(value)
        else:
            self._take(value)

    def clear(self) -> None:
        self._waiting: deque[Any] | None = None if self._window is None else deque(maxlen=self._window)
        self._has_any = False
        self._begin()

    @property
    def is_empty(self) -> bool:
        return not (self._has_any or self._waiting)

    def get_state(self) -> dict[str, Any]:
        self._settle()
        return super().get_state()

    def __getstate__(self) -> dict[str, Any]:
        self._settle()  # whoever unpickles it may not have the device
        return vars(self)

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if self._waiting is not None:
            self._waiting = deque(self._waiting, self._window)

    def _take(self, value: Any) -> None:
        if type(value) is not float:
            value = detached(value, f"reduce={self.stats_cls_identifier!r}")
        if self._waiting is None:
            if not hasattr(value, "detach"):
                self._add(value)
                return
            self._waiting = deque()
        self._waiting.append(value)
        if len(self._waiting) >= _PENDING and self._window is None:
            self._settle()

    def _settle(self) -> None:
        """Fetch the values of the tensors that wait."""
        if not self._waiting:
            return
        numbers = fetched(self._waiting)
        if self._window is not None:
            self._waiting = deque(numbers, self._window)
            return
        self._waiting = None
        for number in numbers:
            self._add(number)

    def _wait_for(self, incoming: Sequence[_NumberStats]) -> None:
        """Take over what others wait for; all of them without a window."""
        for other in incoming:
            if other._waiting:
                if self._waiting is None:
                    self._waiting = deque()
                self._waiting.extend(other._waiting)
        if self._waiting is not None and len(self._waiting) >= _PENDING:
            self._settle()

    def _recent(self) -> list[float]:
        """The values in the window, without NaN."""
        self._settle()
        return [value for value in self._waiting or () if value == value]

    @abc.abstractmethod
    def _begin(self) -> None: ...

    @abc.abstractmethod
    def _add(self, value: float) -> None: ...


class MeanStats(_NumberStats):
    """The mean of all values, or of the last `window` ones. NaN is left out. Merged, every value counts the same."""

    stats_cls_identifier = "mean"

    def __init__(self, window: float | None = None) -> None:
        super().__init__(window)

    def _begin(self) -> None:
        self._sum, self._count = 0.0, 0

    def _add(self, value: float) -> None:
        self._has_any = True
        if value == value:
            self._sum += value
            self._count += 1

    def push_all(self, values: Sequence[Any]) -> None:
        total = sum(values) if self._waiting is None and set(map(type, values)) == {float} else math.nan
        if total == total:  # learners log as many values at once as they take gradient steps
            self._has_any = True
            self._sum += total
            self._count += len(values)
        else:
            super().push_all(values)

    def peek(self, compile: bool = True) -> Any:
        total, count = self._seen()
        mean = total / count if count else math.nan
        return mean if compile else [mean]

    def merge(self, incoming_stats: Sequence[MeanStats]) -> None:
        if self._window is None:
            self._sum += sum([other._sum for other in incoming_stats])
            self._count += sum([other._count for other in incoming_stats])
            self._wait_for(incoming_stats)
        else:
            for total, count in [other._seen() for other in incoming_stats]:
                self._sum += total
                self._count += count
        self._has_any = True

    def _seen(self) -> tuple[float, int]:
        recent = self._recent()
        return self._sum + math.fsum(recent), self._count + len(recent)


class EmaStats(_NumberStats):
    """`(1 - c) * old + c * new` for each value, from the first one on. NaN is left out.

    The running value outlives `reduce`, which is what makes it a moving average; who logged nothing in a cycle hands on
    nothing. Merged, each component counts by how many values it has seen in the cycle.
    """

    stats_cls_identifier = "ema"

    def __init__(self, ema_coeff: float = 0.01) -> None:
        if isinstance(ema_coeff, bool) or not 0 < ema_coeff <= 1:
            raise ValueError(f"ema_coeff={ema_coeff!r} is not above 0 and at most 1: it is the weight of the newest value.")
        self._coeff, self._value = ema_coeff, math.nan
        super().__init__(ema_coeff=ema_coeff)
        del self.settings["window"]

    def push(self, value: Any) -> None:
        old = self._value
        if type(value) is float and self._waiting is None and old == old and value == value:
            self._value = old + self._coeff * (value - old)  # here, and not in _add, because every timer ends here
            self._count += 1
        else:
            self._take(value)

    @property
    def is_empty(self) -> bool:
        return not (self._count or self._has_any or self._waiting)

    def _begin(self) -> None:
        self._count, self._merged = 0, 0.0

    def _add(self, value: float) -> None:
        self._has_any = True
        if value == value:
            old = self._value
            self._value = old + self._coeff * (value - old) if old == old else value
            self._count += 1

    def peek(self, compile: bool = True) -> Any:
        self._settle()
        return self._value if compile else [self._value]

    def merge(self, incoming_stats: Sequence[EmaStats]) -> None:
        for other in incoming_stats:
            other._settle()
            if other._count:
                self._merged += other._value * other._count
                self._count += other._count
        if self._count:
            self._value = self._merged / self._count
        self._has_any = True


class _ExtremeStats(_NumberStats):
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
    """The smallest of all values, or of the last `window` ones. NaN is left out."""

    stats_cls_identifier = "min"
    _pick = staticmethod(min)

    def _add(self, value: float) -> None:
        self._has_any = True
        if not value >= self._value and value == value:
            self._value = value


class MaxStats(_ExtremeStats):
    """The largest of all values, or of the last `window` ones. NaN is left out."""

    stats_cls_identifier = "max"
    _pick = staticmethod(max)

    def _add(self, value: float) -> None:
        self._has_any = True
        if not value <= self._value and value == value:
            self._value = value


class SumStats(_NumberStats):
    """The sum of all values, or of the last `window` ones. NaN is left out; whole numbers stay whole.

    Args:
        window: how many values count; None for all.
        with_throughput: whether to tell how much that is a second, too.
    """

    stats_cls_identifier = "sum"

    def __init__(self, window: float | None = None, with_throughput: bool = False) -> None:
        self.clock = Throughput() if with_throughput else None
        super().__init__(window, with_throughput=bool(with_throughput))

    def reduce(self, compile: bool = True) -> Any:
        if self.clock is None:
            return super().reduce(compile)
        total = self.peek()
        handed = super().reduce(compile)
        self.clock.end_cycle(total, kept=self.peek())
        return handed

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if self.clock is not None:
            self.clock = Throughput(self.peek())

    def _begin(self) -> None:
        self._sum: float = 0

    def _add(self, value: float) -> None:
        self._has_any = True
        if value == value:
            self._sum += value

    def peek(self, compile: bool = True) -> Any:
        recent = self._recent()
        total = self._sum + sum(recent) if recent else self._sum
        return total if compile else [total]

    def merge(self, incoming_stats: Sequence[SumStats]) -> None:
        if self._window is None:
            self._sum += sum([other._sum for other in incoming_stats])
            self._wait_for(incoming_stats)
        else:
            self._sum += sum([other.peek() for other in incoming_stats])
        self._has_any = True


class LifetimeSumStats(SumStats):
    """The sum of all values ever, kept at the root; elsewhere `reduce` hands on what came since the one before."""

    stats_cls_identifier = "lifetime_sum"

    def __init__(self, with_throughput: bool = False) -> None:
        super().__init__(None, with_throughput)
        del self.settings["window"]

    def clear(self) -> None:
        if not self.is_root:
            super().clear()
