"""Python values that a gradient step reads or changes: a compiled step is valid for these values only."""

from __future__ import annotations

import contextlib
import copy
import operator
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from numbers import Number
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.basics import Config
from ding_lite.compiling.tracing import NotCompiledError, user_line

_PLAIN = (Number, str, bytes, Enum, torch.dtype, torch.device)
_MOST = 1000  # plain values in a list, tuple, dict or set
_DEPTH = 3  # of objects that refer to objects
_MISSING = object()
_COUNTERS = "train_iter", "version"
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"} | {"_compiled_call_impl"}
_GROUPS = list, tuple, dict, set, frozenset, deque
_LIBRARIES = frozenset({"ding_lite", "torch", "numpy", "gymnasium", *sys.stdlib_module_names}) - {"__main__"}
_FOLLOWED = frozenset({"ding_lite.policy_base.short_names"})  # policy.config


class _Same:
    """An object that is compared by identity."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.thing is self.thing

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"a {type(self.thing).__name__}"


class Guard(NamedTuple):
    """A Python value that a step has read."""

    owner: Any
    """The object whose attribute it is."""

    name: str
    """Name of the attribute."""

    value: Any
    """The value, as `contents_of` returns it."""

    is_plain: bool
    """Whether this is a copy of the value."""

    def holds(self) -> bool:
        """Whether the attribute still has this value."""
        value, now = self.value, getattr(self.owner, self.name, _MISSING)
        if self.is_plain:
            return now is value or (type(now) is type(value) and bool(now == value))
        if type(value) is _Same:
            return now is value.thing
        return bool(contents_of(now) == value)

    def __str__(self) -> str:
        return f"{type(self.owner).__name__}.{self.name} = {self.value!r:.60}"


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts and None, so that it can be compared and copied."""
    left = [_MOST]

    def plain(part: Any) -> bool:
        left[0] -= 1
        if part is None or isinstance(part, _PLAIN):
            return True
        if left[0] < 0 or not isinstance(part, _GROUPS):
            return False
        return all(map(plain, part)) and (not isinstance(part, dict) or all(map(plain, part.values())))

    return plain(value)


def contents_of(value: Any, depth: int = 0) -> Any:
    """What can be compared in a value: plain values; in lists and the like, and in objects of a user's own, these; of tensors
    and of all other objects, which one it is."""
    if is_plain(value):
        return copy.deepcopy(value)
    if depth > _DEPTH or isinstance(value, (Tensor, nn.Module)) or callable(value):
        return _Same(value)
    if isinstance(value, dict):
        return type(value), {key: contents_of(part, depth + 1) for key, part in value.items()}
    if isinstance(value, _GROUPS):
        return type(value), [contents_of(part, depth + 1) for part in value]
    if not _is_followed(value):
        return _Same(value)
    own = {slot: getattr(value, slot, None) for kind in type(value).__mro__ for slot in vars(kind).get("__slots__", ())}
    own.update(getattr(value, "__dict__", {}))
    return _Same(value), {name: contents_of(part, depth + 1) for name, part in own.items()}


def _is_followed(value: Any) -> bool:
    """Whether the attributes of an object are values that a loss may depend on: those of a user's own classes."""
    module = type(value).__module__
    return module.partition(".")[0] not in _LIBRARIES or module in _FOLLOWED or isinstance(value, SimpleNamespace)


class Reads:
    """Inside `recording`, records which attributes with plain values this thread reads, and which it sets.

    Args:
        kinds: base classes of the objects whose attributes are recorded.
        inputs: names of attributes of `policy` that are inputs of the step, whatever their value.
        policy: the policy.
    """

    def __init__(self, kinds: Sequence[type], inputs: Sequence[str], policy: Any) -> None:
        self._kinds, self._inputs, self._policy = kinds, inputs, policy
        self._thread, self._paused = 0, False
        self._found: dict[tuple[int, str], Guard] = {}
        self._before: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._writers: dict[tuple[int, str], str] = {}
        self._groups: dict[tuple[int, str], tuple[Any, Any, list[Any], str]] = {}

    @property
    def guards(self) -> list[Guard]:
        """The values that were read. Those that were set before they were read are left out."""
        return [guard for key, guard in self._found.items() if key not in self._before]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record in this block.

        Raises:
            NotCompiledError: at the end, an attribute has another value than before, or the block has read a counter.
        """
        self._thread = threading.get_ident()
        with contextlib.ExitStack() as stack:
            for kind in self._kinds:
                stack.enter_context(_replaced(kind, "__getattribute__", self._reader))
                stack.enter_context(_replaced(kind, "__setattr__", self._writer))
            yield
        for (_, name), (owner, value) in self._before.items():
            now = _held(owner, name)
            if now is not value and not (is_plain(now) and type(now) is type(value) and now == value):
                raise NotCompiledError(
                    f"{self._writers[id(owner), name]} sets {type(owner).__name__}.{name}, which a compiled step would not do: "
                    "do it in before_step or after_step."
                )

        for (_, name), (owner, group, contents, place) in self._groups.items():
            if len(group) != len(contents) or not all(map(operator.is_, parts_of(group), contents)):
                raise NotCompiledError(
                    f"{place} reads {type(owner).__name__}.{name}, whose contents the loss changes, which a compiled step "
                    "would not do: change it in before_step or after_step; or, if a network only writes it for others to read, "
                    f"name it in scratch_attributes, a tuple of names, of the class {type(owner).__name__}."
                )

    def _reader(self, original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        def __getattribute__(owner: Any, name: str) -> Any:
            value = original(owner, name)
            if threading.get_ident() == self._thread and not self._paused and not name.startswith("__"):
                self._note(owner, name, value)
            return value

        return __getattribute__

    def _note(self, owner: Any, name: str, value: Any) -> None:
        if callable(value) or isinstance(value, (Tensor, nn.Module)) or (isinstance(owner, nn.Module) and name in _OF_TORCH):
            return
        self._paused = True
        try:
            if isinstance(getattr(type(owner), name, None), property):  # what it reads is recorded
                return
            if owner is self._policy and (name in self._inputs or name == "params"):  # forms check the parameters
                return
            if owner is self._policy and name in _COUNTERS:
                raise NotCompiledError(
                    f"{user_line()} reads {name}, which changes in each step: override step_variant() to return what depends "
                    "on it, such as self.train_iter % 2 == 0, and call it in the loss."
                )
            if name in getattr(type(owner), "scratch_attributes", ()):
                return
            if isinstance(value, _GROUPS) and (id(owner), name) not in self._groups:
                self._groups[id(owner), name] = owner, value, parts_of(value), user_line()
            self._guard(owner, name, value)
        finally:
            self._paused = False

    def _guard(self, owner: Any, name: str, value: Any) -> None:
        if isinstance(value, np.ndarray) or (isinstance(value, _GROUPS) and len(value) > _MOST):
            raise NotCompiledError(
                f"{user_line()} reads {type(owner).__name__}.{name}, a {type(value).__name__} of {len(value):,}, whose "
                "contents a compiled step cannot follow: keep it as a tensor, as a buffer of the model."
            )
        is_group = isinstance(value, (*_GROUPS, Config, torch.Generator))
        if (id(owner), name) not in self._found and (is_plain(value) or is_group or _is_followed(value)):
            self._found[id(owner), name] = Guard(owner, name, contents_of(value), is_plain(value))

    def _writer(self, original: Callable[[Any, str, Any], None]) -> Callable[[Any, str, Any], None]:
        def __setattr__(owner: Any, name: str, value: Any) -> None:
            if threading.get_ident() == self._thread and not self._paused:
                key = id(owner), name
                if key not in self._before:
                    self._before[key] = owner, _held(owner, name)
                    self._writers[key] = user_line()
            original(owner, name, value)

        return __setattr__


def parts_of(group: Any) -> list[Any]:
    """The elements of a list, tuple, set or deque; the values of a dict."""
    return list(group.values()) if isinstance(group, dict) else list(group)


def _held(owner: Any, name: str) -> Any:
    """The attribute of an object, or of a module the parameter, buffer or module."""
    own: dict[str, Any] = vars(owner)
    groups = (own.get(group) for group in ("_parameters", "_buffers", "_modules"))
    return next((held[name] for held in (own, *groups) if isinstance(held, dict) and name in held), _MISSING)


@contextlib.contextmanager
def _replaced(kind: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a method of a class by a wrapper of it, for the block."""
    own = vars(kind).get(name, _MISSING)
    setattr(kind, name, wrap(getattr(kind, name)))
    try:
        yield
    finally:
        if own is _MISSING:
            delattr(kind, name)
        else:
            setattr(kind, name, own)
