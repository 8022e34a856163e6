"""Averages: means and exponential moving averages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ding_lite.metrics.numbers import NumberStats
from ding_lite.metrics.stats_base import plain_number
from ding_lite.metrics.sums import added, between, share, sum_of, times


class MeanStats(NumberStats):
    """The mean of all values, or of the last `window` ones. NaN is ignored. When merged, all values have equal weight."""

    stats_cls_identifier = "mean"

    _sum: float
    _count: int

    def __init__(self, window: float | None = None) -> None:
        super().__init__(window)

    def push(self, value: Any) -> None:
        if type(value) is float and self._waiting is None:
            total = self._sum + value
            if total - total == 0:  # finite; here, and not in _add, because most values are logged as a mean
                self._sum = total
                self._count += 1
                self._has_any = True
                return
        self._take(value)

    def _begin(self) -> None:
        self._sum, self._count = 0.0, 0
        self._wide, self._power = 0.0, 0  # the sum of the values is _sum + _wide * 2 ** _power

    def _add(self, value: float) -> None:
        self._has_any = True
        if value == value:
            total = self._sum + value
            if math.isinf(total) and math.isfinite(value) and math.isfinite(self._sum):
                self._widen(self._sum)
                total = float(value)
            self._sum = total
            self._count += 1

    def push_all(self, values: Sequence[Any]) -> None:
        total = sum(values) if self._waiting is None and set(map(type, values)) == {float} else math.nan
        total += self._sum
        if total - total == 0:  # learners log as many values at once as they take gradient steps
            self._has_any = True
            self._sum = total
            self._count += len(values)
        else:
            super().push_all(values)

    def peek(self, compile: bool = True) -> Any:
        is_plain = self._count and self._window is None and not self._wide and not self._waiting  # almost always
        mean = self._sum / self._count if is_plain else share(*self._seen())
        return mean if compile else [mean]

    def merge(self, incoming_stats: Sequence[MeanStats]) -> None:
        if self._window is None:
            total, count, has_more = self._sum, self._count, False
            for other in incoming_stats:
                total += other._sum
                count += other._count
                if other._wide or other._waiting:
                    has_more = True
            if total - total == 0 and not has_more:  # almost always
                self._sum, self._count = total, count
            else:
                self._merge_totals(other._total() for other in incoming_stats)
                self._wait_for(incoming_stats)
        else:  # each component has its own window: after merging, all values of the cycle count
            self._merge_totals(other._seen() for other in incoming_stats)
        self._has_any = True

    def set_state(self, state: dict[str, Any]) -> None:
        if "_wide" not in state:  # an older state, whose whole sum is _sum * 2 ** _power
            state = {"_power": 0, **state, "_wide": state["_sum"], "_sum": 0.0}
        super().set_state(state)

    def _widen(self, total: float, power: int = 0) -> None:
        self._wide, self._power = added(self._wide, self._power, total, power)

    def _merge_totals(self, totals: Iterable[tuple[float, int, int]]) -> None:
        for total, power, count in totals:
            self._widen(total, power)
            self._count += count

    def _total(self) -> tuple[float, int, int]:
        """The sum without the values in the window, as a total and a power of two, and the number of its values."""
        return *added(self._wide, self._power, self._sum), self._count

    def _seen(self) -> tuple[float, int, int]:
        """The sum, as a total and a power of two, and the number of values."""
        recent = self._recent()
        total, power, count = self._total()
        return *added(total, power, *sum_of(recent)), count + len(recent)


class EmaStats(NumberStats):
    """The exponential moving average, `(1 - c) * old + c * new` for each value; initially the first value. NaN is ignored.

    An infinite value stays in the average, except with `c = 1`, which is the newest value. The average is kept across cycles. A
    component without values in a cycle is not aggregated. When merged, each component is weighted by its number of values in
    the cycle. Of components that work in place of this one, the latest average of each counts. Tensors on other devices are
    fetched by `reduce`, because the next cycle continues from them.
    """

    stats_cls_identifier = "ema"

    def __init__(self, ema_coeff: float = 0.01) -> None:
        coeff = plain_number(ema_coeff)
        if coeff is None or not 0 < coeff <= 1:
            raise ValueError(f"ema_coeff={ema_coeff!r}, expected a number in (0, 1], the weight of the newest value.")
        self._coeff: float = coeff
        self._others = 1 - coeff  # the weight of the earlier values
        self._value: float | None = None
        self._theirs: list[list[float]] = []
        """Of each component that works in place of this one: its place among all, its latest average, and the number of its
        values in the cycle."""
        self._kept: float | None = None
        """The average with that of these components, in the last cycle that had any; None if a later one had own values."""
        self._count = 0
        super().__init__(ema_coeff=coeff)
        del self.settings["window"]

    def push(self, value: Any) -> None:
        old = self._value
        if type(value) is float and self._waiting is None and old is not None:
            new = self._others * old + self._coeff * value
            if new - new == 0:  # finite; here, and not in _add, because every timer ends here
                self._value = new
                self._count += 1
                return
        self._take(value)

    @property
    def is_empty(self) -> bool:
        return not (self._count or self._has_any or self._waiting or self._theirs)

    def reduce(self, compile: bool = True) -> Any:
        self._settle()
        return super().reduce(compile)

    def _begin(self) -> None:
        if self._theirs:
            self._kept = self._average()[0]
        elif self._count:
            self._kept = None
        self._count, self._merged, self._merged_power = 0, 0.0, 0
        self._theirs = []

    def _add(self, value: float) -> None:
        self._has_any = True
        if value == value:
            old, coeff = self._value, self._coeff
            self._value = value if old is None or coeff == 1 else between(old, value, coeff)  # 0 * inf would be NaN
            self._count += 1

    def peek(self, compile: bool = True) -> Any:
        self._settle()
        found = self._average()[0] if self._count or self._kept is None or self._theirs else self._kept
        value = math.nan if found is None else found
        return value if compile else [value]

    def merge_own(self, incoming_stats: Sequence[EmaStats], places: Sequence[int]) -> None:
        theirs = {int(place): (average, count) for place, average, count in self._theirs}
        for place, other in zip(places, incoming_stats):
            other._settle()
            average, count = other._average()
            theirs[place] = math.nan if average is None else average, count + theirs.get(place, (0, 0))[1]
        self._theirs = [[place, average, count] for place, (average, count) in theirs.items()]

    def _average(self) -> tuple[float | None, int]:
        """The average, and its number of values in this cycle."""
        if not self._theirs:
            return self._value, self._count
        total, power, total_count = 0.0, 0, 0
        for value, count in (*(one[1:] for one in self._theirs), (self._value, self._count)):
            if count and value is not None:
                total, power = added(total, power, *times(float(value), int(count)))
                total_count += int(count)
        return (share(total, power, total_count) if total_count else self._value), total_count

    def merge(self, incoming_stats: Sequence[EmaStats]) -> None:
        merged, count = self._merged, self._count
        for other in incoming_stats:
            if other._waiting:
                other._settle()
            value, its_count = other._average()
            if its_count and value is not None:
                merged += float(value) * its_count
                count += its_count
        if merged - merged == 0 and not self._merged_power:  # almost always
            self._merged, self._count = merged, count
        else:
            self._merge_wide(incoming_stats)
        if self._count:
            self._value = share(self._merged, self._merged_power, self._count)
        self._has_any = True

    def _merge_wide(self, incoming_stats: Sequence[EmaStats]) -> None:
        for other in incoming_stats:
            value, count = other._average()
            if count and value is not None:
                self._merged, self._merged_power = added(self._merged, self._merged_power, *times(float(value), count))
                self._count += count
