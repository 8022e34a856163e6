"""Numbers: base class of statistics that take each number into a result at once, or keep the latest ones."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ding_lite.metrics.stats_base import WindowedStats, detached, fetched

_PENDING = 1000  # maximum number of pending tensors, which are then fetched together


class NumberStats(WindowedStats):
    """Statistics of numbers. Without a window, each changes the result at once; with one, the latest are kept.

    A tensor on another device stays pending until its value is needed, also in a copy for `aggregate`, because fetching it
    waits for the device. Later values are pending too, to keep the order. With a window, all values in it are pending.
    """

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
        self._settle()  # the process that unpickles it may not have the device
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
        """Fetch the values of pending tensors."""
        if not self._waiting:
            return
        numbers = fetched(self._waiting)
        if self._window is not None:
            self._waiting = deque(numbers, self._window)
            return
        self._waiting = None
        for number in numbers:
            self._add(number)

    def _wait_for(self, incoming: Sequence[NumberStats]) -> None:
        """Append the pending values of other statistics without a window."""
        waiting = [other._waiting for other in incoming if other._waiting]
        if not waiting:
            return
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.extend(chain.from_iterable(waiting))
        if len(self._waiting) >= _PENDING:
            self._settle()

    def _recent(self) -> list[float]:
        """The values in the window, without NaN."""
        self._settle()
        return [value for value in self._waiting or () if value == value]

    @abc.abstractmethod
    def _begin(self) -> None: ...

    @abc.abstractmethod
    def _add(self, value: float) -> None: ...
