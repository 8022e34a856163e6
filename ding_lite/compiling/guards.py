"""Guards: Python values that a compiled step is valid for, to compare with what they are now."""

from __future__ import annotations

import copy
import datetime
import sys
import zlib
from collections import deque
from enum import Enum
from functools import partial
from numbers import Number
from types import CellType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

_PLAIN = (
    *(Number, np.generic, str, bytes, range, slice, type(Ellipsis), Enum, datetime.date, datetime.timedelta),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
MOST = 1000  # plain values in a list, tuple, dict or set, and elements of an array
DEEPEST = 10  # of lists in lists
MISSING = object()
GROUPS = list, tuple, dict, set, frozenset, deque
_LIBRARIES = frozenset({"ding_lite", "torch", "numpy", "gymnasium", "treetensor", "treevalue", *sys.stdlib_module_names})


class _Same:
    """An object that is compared by identity."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.thing is self.thing

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "missing" if self.thing is MISSING else f"a {type(self.thing).__name__}"


class _Numbers:
    """A copy of an array, which is compared by its bytes."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._of = array.dtype, array.shape, array.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and other._of == self._of

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        dtype, shape, found = self._of
        return f"an array {shape} of {dtype} {zlib.crc32(found):08x}"


class Globals:
    """The globals of a module, as attributes.

    Args:
        names: the dict of the module.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names


class Guard(NamedTuple):
    """A Python value that a step has read."""

    owner: Any
    """The object or class whose attribute it is, a cell of a function, or `Globals` of a module."""

    name: str
    """Name of the attribute."""

    value: Any
    """The value, as `contents_of` returns it."""

    is_plain: bool
    """Whether this is a copy of the value."""

    @staticmethod
    def of(owner: Any, name: str, value: Any) -> Guard:
        """A guard of what an attribute is now."""
        return Guard(owner, name, contents_of(value), is_plain(value))

    def holds(self) -> bool:
        """Whether the attribute still has this value."""
        value, now = self.value, getattr(self.owner, self.name, MISSING)
        if self.is_plain:
            return now is value or (type(now) is type(value) and bool(now == value))
        if type(value) is _Same:
            return now is value.thing
        return bool(contents_of(now) == value)

    @property
    def place(self) -> str:
        """Where the value is, for messages."""
        owner = self.owner
        if isinstance(owner, CellType):
            return "a variable of an enclosing function"
        if isinstance(owner, Globals):
            return f"the global {self.name}"
        return f"{owner.__name__ if isinstance(owner, type) else type(owner).__name__}.{self.name}"

    def __str__(self) -> str:
        return f"{self.place} = {self.value!r}"

    def difference(self) -> str:
        """What the value is now, and what it was."""
        now = getattr(self.owner, self.name, MISSING)
        text = f"{now!r:.60}" if is_plain(now) else repr(_Same(now))
        return f"{self.place} is {text}, and was {self.value!r:.60}"


class TensorGuard(NamedTuple):
    """That an attribute is a tensor of a shape and a dtype."""

    owner: Any
    """The object."""

    name: str
    """Name of the attribute."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def holds(self) -> bool:
        """Whether it still is."""
        now = getattr(self.owner, self.name, None)
        return (
            isinstance(now, torch.Tensor)
            and now.shape == self.shape
            and now.dtype is self.dtype
            and now.requires_grad is self.requires_grad
        )

    def __str__(self) -> str:
        return f"{type(self.owner).__name__}.{self.name} = {self.dtype} of shape {list(self.shape)}"

    def difference(self) -> str:
        """What it is now, and what it was."""
        now = getattr(self.owner, self.name, None)
        found = f"{now.dtype} of shape {list(now.shape)}" if isinstance(now, torch.Tensor) else f"a {type(now).__name__}"
        return f"{type(self.owner).__name__}.{self.name} is {found}, and was {self.dtype} of shape {list(self.shape)}"


class Unshadowed(NamedTuple):
    """That an object uses methods of its class, and has no attributes in their place."""

    owner: Any
    """The object."""

    names: frozenset[str]
    """Names of the methods."""

    def holds(self) -> bool:
        """Whether it still does."""
        return self.names.isdisjoint(vars(self.owner))

    def __str__(self) -> str:
        return f"{type(self.owner).__name__}: {sorted(self.names)}"

    def difference(self) -> str:
        """Which methods have been replaced."""
        return f"{type(self.owner).__name__}.{sorted(self.names.intersection(vars(self.owner)))[0]} has been replaced"


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts and None, so that it can be compared and copied."""
    left = [MOST]

    def plain(part: Any) -> bool:
        left[0] -= 1
        if part is None or isinstance(part, _PLAIN):
            return True
        if left[0] < 0 or not isinstance(part, GROUPS):
            return False
        return all(map(plain, part)) and (not isinstance(part, dict) or all(map(plain, part.values())))

    return plain(value)


def contents_of(value: Any, depth: int = 0) -> Any:
    """What can be compared in a value: plain values, and the elements of arrays; in lists and the like, these; of all other
    objects, which one it is."""
    if is_plain(value):
        return copy.deepcopy(value)
    if isinstance(value, np.ndarray) and value.size <= MOST and not value.dtype.hasobject:
        return _Numbers(value)
    if depth > DEEPEST:
        return _Same(value)
    if isinstance(value, partial):
        return partial, *(contents_of(it, depth + 1) for it in (value.func, value.args, value.keywords))
    if isinstance(value, MethodType):
        return MethodType, _Same(value.__func__), _Same(value.__self__)
    if isinstance(value, SimpleNamespace):
        return _Same(value), contents_of(vars(value), depth + 1)
    if isinstance(value, dict):
        return type(value), {key: contents_of(part, depth + 1) for key, part in value.items()}
    if isinstance(value, GROUPS):
        return type(value), [contents_of(part, depth + 1) for part in value]
    return _Same(value)


def is_users(thing: Any) -> bool:
    """Whether a class, function or module is of none of the libraries that this one is built on."""
    name = getattr(thing, "__name__" if isinstance(thing, type(sys)) else "__module__", None)
    return str(name).partition(".")[0] not in _LIBRARIES or name == "__main__"


def parts_of(group: Any) -> list[Any]:
    """The elements of a list, tuple, set or deque; the values of a dict."""
    return list(group.values()) if isinstance(group, dict) else list(group)
