"""Kept values: whether a value of a context that carries over from iteration to iteration is small, plain data."""

from __future__ import annotations

import enum
import numbers
from collections import Counter, OrderedDict
from typing import Any

MOST_ITEMS = 10_000
"""Items in lists, tuples and dicts, and in those inside them."""
MOST_BYTES = 1 << 20
"""Bytes of arrays, tensors and texts."""

_CONTAINERS = (list, tuple, dict, OrderedDict, Counter)  # those that a saved run holds as they are
_ARRAYS = {("numpy", "ndarray"), ("torch", "Tensor")}  # by name, because importing torch takes seconds


def problem_of(value: Any) -> str | None:
    """The reason why a context should not keep a value, as the end of a sentence; None if it may.

    Numbers, strings, arrays, tensors, and lists, tuples and dicts of these are small up to `MOST_ITEMS` and `MOST_BYTES`.
    Other objects are allowed if they are immutable, such as enum members and dates.

    Example:
        >>> problem_of([1.5, {"a": (2, None)}]), problem_of({1, 2})
        (None, 'which is not plain data')
    """
    items, size, waiting, seen = 0, 0, [value], set[int]()
    while waiting:
        one = waiting.pop()
        if type(one) in _CONTAINERS:
            if id(one) in seen:
                continue
            seen.add(id(one))
            items += len(one)
            if items > MOST_ITEMS:
                return f"with more than {MOST_ITEMS:,} items"
            waiting.extend(one.values() if isinstance(one, dict) else one)
        elif isinstance(one, (str, bytes)):
            size += len(one)
        elif _is_array(one):
            if getattr(one, "requires_grad", False):
                return "which keeps the graph of its gradient in memory"
            is_dense = str(getattr(one, "layout", "torch.strided")) == "torch.strided"
            if one.dtype == object or not is_dense:
                return "which is not plain data"
            size += int(one.nbytes)
        elif not _is_immutable(one):
            return "which is not plain data" if one is value else f"with a {type(one).__name__}, which is not plain data"
        if size > MOST_BYTES:
            return f"of more than {MOST_BYTES >> 20} MiB"
    return None


def _is_array(value: Any) -> bool:
    kind = type(value)
    return (kind.__module__.partition(".")[0], kind.__name__) in _ARRAYS


def _is_immutable(value: Any) -> bool:
    """Whether it is a number, or another object that is compared by its value and that can be in a set."""
    kind: Any = type(value)
    is_number = value is None or isinstance(value, numbers.Number) or any(base.__name__ == "generic" for base in kind.__mro__)
    return is_number or isinstance(value, enum.Enum) or (kind.__hash__ is not None and kind.__eq__ is not object.__eq__)
