"""Kinds of statistics: what becomes of the values that are logged under one key.

Room: ding_lite.metrics, floor 1. Standard library and numpy; torch where a value is a tensor.
"""

from __future__ import annotations

import abc
import copy
import math
from collections import deque
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

PERCENTILES = (0, 50, 75, 90, 95, 99, 100)
"""Which ones `percentiles=True` means."""

_NO_STATE = {"settings", "is_root", "clock"}
_PENDING = 1000  # tensors that wait at most; then they are fetched from their device, all at once


class StatsBase(abc.ABC):
    """The values under one key, since the last `reduce`, as far as they are needed.

    A kind of one's own fills in `push`, `peek`, `clear` and `merge`, takes its settings as keyword arguments of its
    constructor, hands them to this one, and is made known by
    `MetricsLogger(stats_cls_lookup={**DEFAULT_STATS_CLS_LOOKUP, "name": Kind})`.

    Args:
        **settings: what the constructor was given; statistics are merged where these agree.
    """

    stats_cls_identifier: ClassVar[str] = ""
    """Its name in `reduce=`."""

    is_root = False
    """Whether everything comes together here, and nothing is handed on."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    @abc.abstractmethod
    def push(self, value: Any) -> None:
        """Take one value."""

    @abc.abstractmethod
    def peek(self, compile: bool = True) -> Any:
        """The result so far; with `compile=False` a list of what it is made of."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Begin the next cycle. Containers are replaced, not emptied: a copy may have been handed on."""

    @abc.abstractmethod
    def merge(self, incoming_stats: Sequence[Any]) -> None:
        """Take in what others of the same kind and settings have seen, in this order."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to hand on."""
        return False

    def reduce(self, compile: bool = True) -> Any:
        """End the cycle: the result, or with `compile=False` statistics to hand on, which hold what these have seen."""
        handed = self.peek() if compile else copy.copy(self)
        self.clear()
        return handed

    def get_state(self) -> dict[str, Any]:
        """What `set_state` of another one takes, made with the same settings."""
        return {name: copy.copy(value) for name, value in vars(self).items() if name not in _NO_STATE}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on as the one did that gave this state."""
        vars(self).update({name: copy.copy(value) for name, value in state.items()})

    def __float__(self) -> float:
        return float(self.peek())

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({self.peek()!r}{settings})"


class _NumberStats(StatsBase):
    """Of numbers. Without a window they are added up as they come; with one, the last ones are kept.

    A tensor waits, detached, until its value is needed: to ask for it would wait for the device. What comes after it waits too,
    so that the order stays.
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

    def reduce(self, compile: bool = True) -> Any:
        self._settle()
        return super().reduce(compile)

    def get_state(self) -> dict[str, Any]:
        self._settle()
        return super().get_state()

    def _take(self, value: Any) -> None:
        if type(value) is not float:
            value = _detached(value, f"reduce={self.stats_cls_identifier!r}")
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

    def peek(self, compile: bool = True) -> Any:
        total, count = self._seen()
        mean = total / count if count else math.nan
        return mean if compile else [mean]

    def merge(self, incoming_stats: Sequence[MeanStats]) -> None:
        if self._window is None:
            self._sum += sum([other._sum for other in incoming_stats])
            self._count += sum([other._count for other in incoming_stats])
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
        theirs = [other.peek() if other._waiting else other._value for other in incoming_stats]
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


class Clock:
    """How much comes in a second.

    Until the first `reduce`, since it was made. After that, in the last whole cycle, from one `reduce` to the next; NaN while
    there was none.
    """

    def __init__(self) -> None:
        self._born = perf_counter()
        self._base: float = 0  # what there was then
        self._begun: float | None = None
        self._before: float = 0  # what there was when the cycle began
        self._last = math.nan

    def end_cycle(self, total: float, kept: float) -> None:
        """There are `total` now, of which `kept` stay for the next cycle."""
        now = perf_counter()
        if self._begun is not None and now > self._begun:
            self._last = (total - self._before) / (now - self._begun)
        self._begun, self._before = now, kept

    def restart(self, total: float) -> None:
        """There are `total` from an earlier run."""
        self.__init__()  # type: ignore[misc]
        self._base = total

    def throughput(self, total: float) -> float:
        """There are `total` now: how many a second."""
        return self.since_restore(total) if self._begun is None else self._last

    def since_restore(self, total: float) -> float:
        """The same, since the program began or went on."""
        passed = perf_counter() - self._born
        return (total - self._base) / passed if passed > 0 else math.nan


class SumStats(_NumberStats):
    """The sum of all values, or of the last `window` ones. NaN is left out; whole numbers stay whole.

    Args:
        window: how many values count; None for all.
        with_throughput: whether to tell how much that is a second, too.
    """

    stats_cls_identifier = "sum"

    def __init__(self, window: float | None = None, with_throughput: bool = False) -> None:
        self.clock = Clock() if with_throughput else None
        super().__init__(window, with_throughput=bool(with_throughput))

    def reduce(self, compile: bool = True) -> Any:
        total = self.peek()
        handed = super().reduce(compile)
        if self.clock is not None:
            self.clock.end_cycle(total, self.peek())
        return handed

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if self.clock is not None:
            self.clock.restart(self.peek())

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


class _CollectedStats(StatsBase):
    """Keeps values as they are. Tensors are kept detached, and fetched when somebody looks."""

    def __init__(self, window: float | None = None, **settings: Any) -> None:
        window = checked_window(window)
        super().__init__(window=window, **settings)
        self._window = window
        self.clear()

    def push(self, value: Any) -> None:
        self._values.append(value.detach() if hasattr(value, "detach") else value)

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

    def merge(self, incoming_stats: Sequence[_CollectedStats]) -> None:
        # A window is one of each component: here all that came in the cycle counts.
        self._values = deque((*self._values, *(value for other in incoming_stats for value in other._values)))


class ItemSeriesStats(_CollectedStats):
    """Every value, in order, or the last `window` ones; anything can be one. Merged, component after component."""

    stats_cls_identifier = "item_series"

    def __init__(self, window: float | None = None) -> None:
        super().__init__(window)

    def peek(self, compile: bool = True) -> Any:
        return [off_device(value) for value in self._values]


class ItemStats(_CollectedStats):
    """The last value, whatever it is; None before the first one. Merged, that of the last component that has one."""

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
    """Percentiles of all values, or of the last `window` ones, interpolated between neighbours. NaN is left out.

    Args:
        window: how many values count; None for all.
        percentiles: from 0 to 100; True for 0, 50, 75, 90, 95, 99 and 100.
    """

    stats_cls_identifier = "percentiles"

    def __init__(self, window: float | None = None, percentiles: bool | Iterable[float] = True) -> None:
        wanted = PERCENTILES if percentiles is True else percentiles
        self._wanted = tuple(wanted) if isinstance(wanted, Iterable) else ()
        if not self._wanted or not all(isinstance(it, (int, float)) and 0 <= it <= 100 for it in self._wanted):
            raise ValueError(f"percentiles={percentiles!r} are not numbers from 0 to 100, nor True for the usual ones.")
        super().__init__(window, percentiles=self._wanted)

    def push(self, value: Any) -> None:
        self._values.append(value if type(value) is float else _detached(value, "reduce='percentiles'"))

    def peek(self, compile: bool = True) -> Any:
        values = [value for value in fetched(self._values) if value == value]
        if not compile:
            return values
        found = np.percentile(values, self._wanted).tolist() if values else [math.nan] * len(self._wanted)
        return dict(zip(self._wanted, found))


DEFAULT_STATS_CLS_LOOKUP: dict[str, type[StatsBase]] = {
    kind.stats_cls_identifier: kind
    for kind in (
        MeanStats,
        EmaStats,
        MinStats,
        MaxStats,
        SumStats,
        LifetimeSumStats,
        PercentilesStats,
        ItemStats,
        ItemSeriesStats,
    )
}
"""Kinds of statistics by their name in `reduce=`."""


def checked_window(window: float | None) -> int | None:
    """How many values count, or None for all.

    Raises:
        ValueError: it is no whole number above 0.
    """
    if window is None or window == math.inf:
        return None
    if isinstance(window, bool) or window != window or window != int(window) or window < 1:
        raise ValueError(f"window={window!r} is no whole number above 0: say over how many values, or leave it out for all.")
    return int(window)


def off_device(value: Any) -> Any:
    """A tensor as an array in this process' memory, or as a number where it is one; anything else as it is."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return tensor.numpy() if tensor.ndim else tensor.item()


def fetched(values: Iterable[Any]) -> list[Any]:
    """Numbers, and those of tensors [], in order; one transfer for each device."""
    numbers = list(values)
    where: dict[Any, list[int]] = {}
    for index, value in enumerate(numbers):
        if hasattr(value, "detach"):
            where.setdefault(value.device, []).append(index)
    for indices in where.values():
        import torch

        together = torch.stack([numbers[index].to(torch.float64) for index in indices])
        for index, number in zip(indices, together.tolist()):
            numbers[index] = number
    return numbers


def _detached(value: Any, told: str) -> Any:
    """A number, or a tensor [] of one, out of the graph and still on its device."""
    if hasattr(value, "detach"):
        if value.numel() != 1:
            raise ValueError(f"{told} takes numbers, got a tensor of shape {tuple(value.shape)}: reduce it before.")
        return value.detach().reshape(())
    try:
        number = value.item() if hasattr(value, "item") else value
        return number if type(number) in (int, float) else float(number)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{told} takes numbers, got {value!r} of type {type(value).__name__}: log it with reduce='item' or 'item_series'."
        ) from error
