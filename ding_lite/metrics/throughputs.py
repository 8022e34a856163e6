"""Throughputs: quantities per second."""

from __future__ import annotations

import math
from time import perf_counter


class Throughput:
    """A quantity per second.

    Until the first `reduce`, it is measured since the start. After that, over the last complete cycle between two `reduce`;
    NaN if there was none.

    Args:
        base: the quantity of an earlier run.
    """

    def __init__(self, base: float = 0) -> None:
        self._born = perf_counter()
        self._base = base  # what there was then
        self._begun: float | None = None
        self._before: float = 0  # what there was when the cycle began
        self._last = math.nan

    def end_cycle(self, total: float, kept: float) -> None:
        """There are `total` now, of which `kept` stay for the next cycle."""
        now = perf_counter()
        if self._begun is not None and now > self._begun:
            self._last = (total - self._before) / (now - self._begun)
        self._begun, self._before = now, kept

    def rate(self, total: float) -> float:
        """There are `total` now: how many a second."""
        return self.since_restore(total) if self._begun is None else self._last

    def since_restore(self, total: float) -> float:
        """The same, since the program began or went on."""
        passed = perf_counter() - self._born
        return (total - self._base) / passed if passed > 0 else math.nan
