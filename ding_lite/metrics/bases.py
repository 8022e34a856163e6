"""Bases of statistics: what every kind does, and how values that may be tensors are read."""

from __future__ import annotations

import abc
import copy
import math
import numbers
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

_NO_STATE = {"settings", "is_root", "clock", "owner"}
_LARGEST = sys.float_info.max


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

    owner: str | None = ""
    """Which component logs it, see `MetricsLogger`; None where that is not known, as in a saved state."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    @abc.abstractmethod
    def push(self, value: Any) -> None:
        """Take one value."""

    def push_all(self, values: Sequence[Any]) -> None:
        """Take several values, one after the other."""
        for value in values:
            self.push(value)

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
        handed = self.peek() if compile else self.__copy__()
        self.clear()
        return handed

    def __copy__(self) -> Any:
        new = object.__new__(type(self))  # what copy.copy() does, in a quarter of the time, and without __getstate__
        vars(new).update(vars(self))
        return new

    def get_state(self) -> dict[str, Any]:
        """What `set_state` of another one takes, made with the same settings: plain data, as far as the values are."""
        state = {name: value for name, value in vars(self).items() if name not in _NO_STATE}
        return {name: list(value) if isinstance(value, deque) else copy.copy(value) for name, value in state.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on as the one did that gave this state."""
        vars(self).update({name: copy.copy(value) for name, value in state.items()})

    def __float__(self) -> float:
        return float(self.peek())

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({self.peek()!r}{settings})"


class WindowedStats(StatsBase):
    """Of all values, or of the last `window` ones."""

    def __init__(self, window: float | None = None, **settings: Any) -> None:
        self._window = checked_window(window)
        super().__init__(window=self._window, **settings)
        self.clear()


def checked_window(window: float | None) -> int | None:
    """How many values count, or None for all.

    Raises:
        ValueError: it is no whole number above 0.
    """
    if window is None:
        return None
    number = plain_number(window)
    if number == math.inf:
        return None
    if number is None or number != number or number != int(number) or number < 1:
        raise ValueError(f"window={window!r} is no whole number above 0: say over how many values, or leave it out for all.")
    return int(number)


def plain_number(value: Any) -> float | None:
    """A number, an array or a tensor of one number, as a float or an int; None where it is something else, or a bool."""
    number = value.item() if math.prod(getattr(value, "shape", ())) == 1 and hasattr(value, "item") else value
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        return None
    return number if isinstance(number, (int, float)) else float(number)


def off_device(value: Any) -> Any:
    """A tensor as an array in this process' memory, or as a number where it is one; anything else as it is."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return tensor.numpy() if tensor.ndim else tensor.item()


def fetched(values: Iterable[Any]) -> list[Any]:
    """Numbers, and those of tensors [], in order; one transfer for each device and dtype."""
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


def at_once(values: Any) -> list[Any]:
    """Several values as a list; as numbers, where they are an array, or tensors of one number, in this process' memory.

    Raises:
        TypeError: they are text, names that lead to values, or a single value.
    """
    is_array = hasattr(values, "shape")
    is_one = len(values.shape) == 0 if is_array else not isinstance(values, Iterable)
    if is_one or isinstance(values, (str, bytes, Mapping)):
        other = "log_dict() takes names with their values" if isinstance(values, Mapping) else "log_value() takes a single one"
        raise TypeError(
            f"log_values() takes several values, as a list, an array or a tensor, got {values!r:.60} "
            f"of type {type(values).__name__}: {other}."
        )
    if is_array and len(values.shape) == 1 and getattr(values, "is_cpu", True) and hasattr(values, "tolist"):
        return list(values.tolist())
    several = list(values)
    if not several or not getattr(several[0], "is_cpu", False):
        return several
    try:
        return [value.item() for value in several]
    except (AttributeError, RuntimeError):  # not all of them
        return several


def detached(value: Any, what: str) -> Any:
    """A number; or, of a tensor whose device would have to be waited for, a copy [] there, out of the graph.

    A copy, because optimizers and running statistics change their tensors in place. A number that no float can hold is
    infinite.
    """
    if hasattr(value, "detach"):
        if value.numel() != 1:
            raise ValueError(f"{what} takes numbers, got a tensor of shape {tuple(value.shape)}: reduce it before.")
        if not value.is_cpu and not value.is_complex():
            return value.detach().reshape(()).clone()
    try:
        number = value.item() if hasattr(value, "item") else value
        return held(number) if type(number) in (int, float) else float(number)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{what} takes numbers, got {value!r} of type {type(value).__name__}: log it with reduce='item' or 'item_series'."
        ) from error
    except OverflowError:  # a fraction, say
        return math.inf if number > 0 else -math.inf


def held(number: float) -> float:
    """The number, or an infinite one where it is whole and larger than any float."""
    if -_LARGEST <= number <= _LARGEST or number != number:
        return number
    return math.inf if number > 0 else -math.inf


def total_of(values: Iterable[float]) -> float:
    """Their sum, whole where they are; infinite where no float can hold it, NaN for infinities of both signs."""
    total: float = 0
    for value in values:
        total = held(total + value)
    return total
