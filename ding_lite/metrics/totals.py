"""Totals: sums, since the last reduction or of a lifetime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ding_lite.metrics.numbers import NumberStats
from ding_lite.metrics.stats_base import held, total_of
from ding_lite.metrics.throughputs import Throughput


class SumStats(NumberStats):
    """The sum of all values, or of the last `window` ones. NaN is ignored. The sum of integers is an integer.

    Args:
        window: number of latest values that count; None for all.
        with_throughput: whether to report the sum per second as well.
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
        if isinstance(handed, SumStats):
            handed.clock = self.clock.__copy__()  # because this one changes in the next cycle
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
            self._sum = held(self._sum + value)

    def peek(self, compile: bool = True) -> Any:
        recent = self._recent()
        total = total_of([self._sum, *recent]) if recent else self._sum
        return total if compile else [total]

    def merge(self, incoming_stats: Sequence[SumStats]) -> None:
        if self._window is None:
            self._sum = total_of([self._sum, *[other._sum for other in incoming_stats]])
            self._wait_for(incoming_stats)
        else:
            self._sum = total_of([self._sum, *[other.peek() for other in incoming_stats]])
        self._has_any = True


class LifetimeSumStats(SumStats):
    """The sum of all values. The root logger keeps it across cycles; other loggers start each cycle at 0."""

    stats_cls_identifier = "lifetime_sum"

    def __init__(self, with_throughput: bool = False) -> None:
        super().__init__(None, with_throughput)
        del self.settings["window"]

    def clear(self) -> None:
        if not self.is_root:
            super().clear()
