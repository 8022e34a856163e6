"""Guards: Python values that a compiled step is valid for, to compare with what they are now."""

from __future__ import annotations

import copy
import datetime
import operator
import sys
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from functools import partial
from numbers import Number
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
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
_GROUPS = frozenset(GROUPS)
_SEQUENCES = list, tuple, deque
_BUILTIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_BASES = bool, int, float, complex, str, bytes
_IS_FIXED, _IS_PYTHON_CLASS = 1 << 8, 1 << 9  # Py_TPFLAGS_IMMUTABLETYPE and Py_TPFLAGS_HEAPTYPE
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
        return Guard(owner, name, contents_of(value), is_builtin(value))

    def holds(self) -> bool:
        """Whether the attribute still has this value."""
        value, now = self.value, getattr(self.owner, self.name, MISSING)
        if self.is_plain:
            return are_alike(now, value)
        if type(value) is _Same:
            return now is value.thing
        return are_alike(contents_of(now, copies=False), value)

    @property
    def place(self) -> str:
        """Where the value is, for messages."""
        owner = self.owner
        if isinstance(owner, CellType):
            return "a variable of an enclosing function"
        if isinstance(owner, Globals):
            return f"the global {self.name}"
        is_named = isinstance(owner, (type, FunctionType, ModuleType))
        return f"{owner.__name__ if is_named else type(owner).__name__}.{self.name}"

    def __str__(self) -> str:
        return f"{self.place} = {self.value!r}"

    def difference(self) -> str:
        """What the value is now, and what it was."""
        now = getattr(self.owner, self.name, MISSING)
        text = f"{now!r:.60}" if is_plain(now) else repr(_Same(now))
        return f"{self.place} is {text}, and was {self.value!r:.60}"


class Descriptor:
    """An attribute of a class as it is in the class itself, without calling its `__get__`: the owner of a guard.

    Args:
        kind: the class.
        name: the name of the attribute.
    """

    def __init__(self, kind: type, name: str) -> None:
        self._kind, self._name = kind, name
        self.__name__ = kind.__name__

    def __getattr__(self, name: str) -> Any:
        return of_class(self._kind, name)


class NamesOf:
    """The names of all attributes of an object: the owner of a guard.

    Args:
        owner: the object.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self.__name__ = type(owner).__name__

    @property
    def names(self) -> list[str]:
        """In the order in which they were set."""
        return list(object.__getattribute__(self._owner, "__dict__"))


class FunctionGuard(NamedTuple):
    """That a function has this code, and these default values of arguments."""

    function: FunctionType
    code: CodeType
    defaults: tuple[Any, ...] | None
    keyword_defaults: dict[str, Any] | None
    contents: tuple[Guard, ...]
    """What is in the default values, if that can change."""

    @staticmethod
    def of(function: FunctionType) -> FunctionGuard:
        """A guard of what a function is now."""
        defaults, by_name = function.__defaults__, function.__kwdefaults__
        changing = [] if all(type(it) in _BUILTIN for it in defaults or ()) else ["__defaults__"]
        changing += ["__kwdefaults__"] if by_name else []
        contents = tuple(Guard.of(function, name, getattr(function, name)) for name in changing)
        return FunctionGuard(function, function.__code__, defaults, by_name, contents)

    def holds(self) -> bool:
        """Whether it still is."""
        function, code, defaults, by_name, contents = self
        return (
            function.__code__ is code
            and function.__defaults__ is defaults
            and function.__kwdefaults__ is by_name
            and (not contents or all(guard.holds() for guard in contents))
        )

    @property
    def place(self) -> str:
        """What it is, for messages."""
        return f"the code or a default value of {self.function.__qualname__}"

    def __str__(self) -> str:
        values = [it.value for it in self.contents] or self.defaults
        return f"{self.function.__qualname__} = {zlib.crc32(self.code.co_code):08x} {values!r}"

    def difference(self) -> str:
        """What has changed."""
        return f"{self.place} has changed"


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


class Guards:
    """Guards that are checked together.

    Args:
        guards: the guards.
    """

    def __init__(self, guards: Iterable[AnyGuard]) -> None:
        found = tuple(guards)
        # Mostly, the same object is still there, so that it need not be compared.
        quick = [it for it in found if isinstance(it, Guard) and (type(it.value) is _Same or type(it.value) in _BUILTIN)]
        self._quick = quick
        self._places = [it.owner for it in quick], [it.name for it in quick], [MISSING] * len(quick)
        self._values = [it.value.thing if type(it.value) is _Same else it.value for it in quick]
        ids = set(map(id, quick))
        self._others = [it for it in found if id(it) not in ids]

    def broken(self) -> AnyGuard | None:
        """The first guard that no longer holds; None if all do."""
        now = list(map(getattr, *self._places))
        if not all(map(operator.is_, now, self._values)):
            for guard, value, other in zip(self._quick, self._values, now):
                if value is not other and not guard.holds():
                    return guard
        return next((it for it in self._others if not it.holds()), None)


def are_alike(now: Any, was: Any) -> bool:
    """Whether a value has the type of another one and equals it. 0.0 and -0.0 differ, and so do dicts in another order."""
    if now is was:
        return True
    kind = type(now)
    if kind is not type(was):
        return False
    if kind is dict:
        return len(now) == len(was) and are_alike([*now], [*was]) and are_alike([*now.values()], [*was.values()])
    if isinstance(now, _SEQUENCES):
        return len(now) == len(was) and (all(map(operator.is_, now, was)) or all(map(are_alike, now, was)))
    if isinstance(now, (set, frozenset)):
        return bool(now == was) and set(map(type, now)) == set(map(type, was))
    if now == was:
        return bool(now) or not isinstance(now, (float, complex, np.inexact)) or repr(now) == repr(was)
    return bool(now != now and was != was)


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts and None, so that it can be compared and copied."""
    left = [MOST]

    def plain(part: Any) -> bool:
        left[0] -= 1
        kind = type(part)
        if kind in _BUILTIN or (kind not in _GROUPS and isinstance(part, _PLAIN)):
            return True
        if left[0] < 0 or not isinstance(part, GROUPS):
            return False
        return all(map(plain, part)) and (not isinstance(part, dict) or all(map(plain, part.values())))

    return plain(value)


def is_builtin(value: Any) -> bool:
    """Whether a value is plain and has no other attributes, such as those of an object of a class that is derived from list."""
    return type(value) in _BUILTIN or (is_plain(value) and not _has_more(value))


def _has_more(value: Any) -> bool:
    kind = type(value)
    if kind in _BUILTIN or isinstance(value, Enum):
        return False
    is_namedtuple = isinstance(value, tuple) and hasattr(kind, "_fields")
    if kind not in _GROUPS and not is_namedtuple and (kind.__dictoffset__ or (is_watchable(kind) and is_users(kind))):
        return True
    parts = (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, GROUPS) else ()
    return any(map(_has_more, parts))


def is_watchable(kind: type) -> bool:
    """Whether a class is made by Python code, so that reads of the attributes of its objects can be noticed."""
    return kind.__flags__ & (_IS_FIXED | _IS_PYTHON_CLASS) == _IS_PYTHON_CLASS


def contents_of(value: Any, depth: int = 0, copies: bool = True) -> Any:
    """What can be compared in a value: plain values, and the elements of arrays; in lists and the like, these; of all other
    objects, which one it is.

    Args:
        value: the value.
        depth: of lists in lists, around the value.
        copies: whether lists and the like are copied, so that later changes of the value do not change the result.
    """
    if is_builtin(value):
        return copy.deepcopy(value) if copies else value
    kind = type(value)
    if kind.__dictoffset__ and isinstance(value, GROUPS) and not is_watchable(kind):
        return kind, _elements_of(value, depth, copies), contents_of(vars(value), depth + 1, copies)
    if isinstance(value, np.ndarray) and value.size <= MOST and not value.dtype.hasobject:
        return _Numbers(value)
    if depth > DEEPEST:
        return _Same(value)
    if isinstance(value, partial):
        return partial, *(contents_of(it, depth + 1, copies) for it in (value.func, value.args, value.keywords))
    if isinstance(value, MethodType):
        return MethodType, _Same(value.__func__), _Same(value.__self__)
    if has_data(value):
        return BuiltinMethodType, value.__name__, contents_of(value.__self__, depth + 1, copies)
    if isinstance(value, SimpleNamespace):
        return _Same(value), contents_of(vars(value), depth + 1, copies)
    if isinstance(value, GROUPS):
        return kind, _elements_of(value, depth, copies)
    if isinstance(value, _BASES):
        return kind, next(base.__repr__(value) for base in _BASES if isinstance(value, base))
    if isinstance(value, _PLAIN):
        return kind, value
    return _Same(value)


def _elements_of(group: Any, depth: int, copies: bool) -> Any:
    if isinstance(group, dict):
        items = OrderedDict.items(group) if isinstance(group, OrderedDict) else dict.items(group)  # not those of a subclass
        return {key: contents_of(part, depth + 1, copies) for key, part in items}
    return [contents_of(part, depth + 1, copies) for part in group]


def has_data(function: Any) -> bool:
    """Whether something is a builtin method of a list and the like, such as `table.get`."""
    return isinstance(function, BuiltinMethodType) and isinstance(function.__self__, (*GROUPS, np.ndarray))


def of_class(kind: type, name: str) -> Any:
    """An attribute of a class, or `MISSING`, without calling its `__get__`."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), MISSING)


def is_users(thing: Any) -> bool:
    """Whether a class, function or module is of none of the libraries that this one is built on."""
    name = getattr(thing, "__name__" if isinstance(thing, type(sys)) else "__module__", None)
    root = str(name).partition(".")[0]
    return (root not in _LIBRARIES and not root.startswith("namedtuple_")) or name == "__main__"


def parts_of(group: Any) -> list[Any]:
    """The elements of a list, tuple, set or deque; the keys and values of a dict."""
    return [*group, *group.values()] if isinstance(group, dict) else list(group)


AnyGuard = Guard | TensorGuard | Unshadowed | FunctionGuard
