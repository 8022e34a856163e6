"""Base class of statistics, and functions that read values, which may be tensors."""

from __future__ import annotations

import abc
import copy
import math
import numbers
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

_NO_STATE = {"settings", "is_root", "clock", "owner"}
_LARGEST = sys.float_info.max


class StatsBase(abc.ABC):
    """The statistics of one key since the last `reduce`.

    A custom kind implements `push`, `peek`, `clear` and `merge`. It takes its settings as keyword arguments of its constructor,
    and passes them to the constructor of this class. Register it with
    `MetricsLogger(stats_cls_lookup={**DEFAULT_STATS_CLS_LOOKUP, "name": Kind})`.

    Args:
        **settings: arguments of the constructor; only statistics with equal settings are merged.
    """

    stats_cls_identifier: ClassVar[str] = ""
    """Its name in `reduce=`."""

    is_root = False
    """Whether it belongs to the root logger, whose results are not aggregated again."""

    owner: str | None = ""
    """The component that logs it, see `MetricsLogger`; None if unknown, as after `set_state`."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    @abc.abstractmethod
    def push(self, value: Any) -> None:
        """Add one value."""

    def push_all(self, values: Sequence[Any]) -> None:
        """Add several values, in order."""
        for value in values:
            self.push(value)

    @abc.abstractmethod
    def peek(self, compile: bool = True) -> Any:
        """The result so far; with `compile=False`, a list of values."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Start the next cycle. Containers must be replaced, not emptied, because copies of these statistics share them."""

    @abc.abstractmethod
    def merge(self, incoming_stats: Sequence[Any]) -> None:
        """Merge other statistics of the same kind and settings, in this order."""

    def merge_own(self, incoming_stats: Sequence[Any], places: Sequence[int]) -> None:
        """Merge statistics that count as logged here, see `MetricsLogger.aggregate`; like `merge`, if nothing else is said.

        Args:
            incoming_stats: the statistics of the components that have any.
            places: the place of each component among all, which stays the same from call to call.
        """
        self.merge(incoming_stats)

    @property
    def is_empty(self) -> bool:
        """Whether there are no values for `aggregate`."""
        return False

    def reduce(self, compile: bool = True) -> Any:
        """End the cycle. Returns the result, or with `compile=False` a copy of these statistics for `aggregate`."""
        handed = self.peek() if compile else self.__copy__()
        self.clear()
        return handed

    def __copy__(self) -> Any:
        new = object.__new__(type(self))  # like copy.copy(), in a quarter of the time and without __getstate__
        vars(new).update(vars(self))
        return new

    def get_state(self) -> dict[str, Any]:
        """The state for `set_state` of statistics with the same settings; plain data, if the values are plain."""
        state = {name: value for name, value in vars(self).items() if name not in _NO_STATE}
        return {name: list(value) if isinstance(value, deque) else copy.copy(value) for name, value in state.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        vars(self).update({name: copy.copy(value) for name, value in state.items()})

    def __float__(self) -> float:
        return float(self.peek())

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({self.peek()!r}{settings})"


class WindowedStats(StatsBase):
    """Statistics of all values, or of the last `window` ones."""

    def __init__(self, window: float | None = None, **settings: Any) -> None:
        self._window = checked_window(window)
        super().__init__(window=self._window, **settings)
        self.clear()


def checked_window(window: float | None) -> int | None:
    """The checked number of values in a window, or None for all.

    Raises:
        ValueError: not an integer above 0.
    """
    if window is None:
        return None
    number = plain_number(window)
    if number == math.inf:
        return None
    if number is None or number != number or number != int(number) or number < 1:
        raise ValueError(f"window={window!r}, expected an integer above 0: set the number of values, or leave it out for all.")
    return int(number)


def plain_number(value: Any) -> float | None:
    """A number, or an array or tensor of one number, as a float or int; None for anything else, and for a bool."""
    number = value.item() if math.prod(getattr(value, "shape", ())) == 1 and hasattr(value, "item") else value
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        return None
    return number if isinstance(number, (int, float)) else float(number)


def off_device(value: Any) -> Any:
    """A tensor as a numpy array, or as a number if it has no dimension; anything else unchanged.

    Numbers of a type that numpy lacks, such as bfloat16, become float32. A tensor that is no array, such as a sparse one, is
    unchanged.
    """
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    if not tensor.ndim:
        return tensor.item()
    try:
        return tensor.numpy(force=True)
    except TypeError:
        is_array = tensor.is_floating_point() and "strided" in str(tensor.layout)
        return tensor.float().numpy() if is_array else tensor


def fetched(values: Iterable[Any]) -> list[Any]:
    """The numbers in order, with scalar tensors converted to numbers by one transfer per device and dtype."""
    numbers = list(values)
    where: dict[Any, list[int]] = {}
    for index, value in enumerate(numbers):
        if hasattr(value, "detach"):
            where.setdefault((value.device, value.dtype), []).append(index)
    for indices in where.values():
        import torch

        for index, number in zip(indices, torch.stack([numbers[index] for index in indices]).tolist()):
            numbers[index] = number
    return numbers


def unmasked(value: Any) -> Any:
    """The values of a masked array that its mask does not hide; anything else as it is."""
    return value.compressed() if isinstance(value, np.ma.MaskedArray) else value


def at_once(values: Any) -> list[Any]:
    """Several values as a list. Arrays of one dimension and scalar tensors on the CPU are converted to numbers. Masked values
    are left out.

    Raises:
        TypeError: the values are text, a mapping, or a single value.
    """
    if type(values) is list and values and type(values[0]) is float:
        return values
    is_array = hasattr(values, "shape")
    is_one = len(values.shape) == 0 if is_array else not isinstance(values, Iterable)
    if is_one or isinstance(values, (str, bytes, Mapping)):
        other = "log_dict() takes names with their values" if isinstance(values, Mapping) else "log_value() takes a single one"
        raise TypeError(
            f"log_values() wants several values, as a list, an array or a tensor, got {values!r:.60} "
            f"of type {type(values).__name__}: {other}."
        )
    values = unmasked(values)
    if is_array and len(values.shape) == 1 and getattr(values, "is_cpu", True) and hasattr(values, "tolist"):
        return list(values.tolist())
    several = list(values)
    if not several or not getattr(several[0], "is_cpu", False):
        return several
    try:
        if all(value is several[0] for value in several):  # such as the lag, which is the same in all gradient steps
            return [several[0].item()] * len(several)
        return [value.item() for value in several]
    except (AttributeError, RuntimeError):  # not all of them
        return several


def detached(value: Any, what: str) -> Any:
    """A number; or, for a tensor on another device, a detached scalar copy there, without waiting for the device.

    A copy, because optimizers and running statistics change their tensors in place. Numbers too large for a float become
    infinite, and masked ones NaN.
    """
    if type(value) is int:  # counts, which are most of the numbers that are no floats
        return held(value)
    if hasattr(value, "detach"):
        if value.numel() != 1:
            raise ValueError(
                f"{what} wants numbers, got a tensor of shape {tuple(value.shape)}: reduce it before logging, or log all its "
                "numbers with log_values()."
            )
        if not value.is_cpu and not value.is_complex():
            return value.detach().reshape(()).clone()
    if isinstance(value, np.ma.MaskedArray):
        value = unmasked(value) if value.count() else math.nan
    try:
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, (str, bytes, bytearray)):
            raise TypeError("text is no number")  # float() would read it
        return held(number) if type(number) in (int, float) else float(number)
    except (TypeError, ValueError) as error:
        several = ", or several numbers with log_values()" if hasattr(value, "__len__") and not isinstance(value, str) else ""
        raise TypeError(
            f"{what} wants numbers, got {value!r} of type {type(value).__name__}: log it with reduce='item' or "
            f"'item_series'{several}."
        ) from error
    except OverflowError:  # a fraction, say
        return math.inf if number > 0 else -math.inf


def held(number: float) -> float:
    """The number; infinity for an integer too large for a float."""
    if -_LARGEST <= number <= _LARGEST or number != number:
        return number
    return math.inf if number > 0 else -math.inf


def total_of(values: Iterable[float]) -> float:
    """The sum of the values; an integer if all are integers, infinite on overflow, NaN for infinities of both signs."""
    total: float = 0
    for value in values:
        total += value
        if not -_LARGEST <= total <= _LARGEST:
            total = held(total)
    return total
