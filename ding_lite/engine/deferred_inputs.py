"""Inputs of deferred work: its arguments and closure, and whether they have changed."""

from __future__ import annotations

import functools
import inspect
import itertools
import reprlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, NoReturn

from ding_lite.basics.closures import content_of
from ding_lite.basics.messages import call_of, describe_call, location_of, name_of
from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.basics.signatures import positional_names, signature_of
from ding_lite.pipeline.contexts import Context, is_scalar
from ding_lite.pipeline.fingerprints import Print, changed, fingerprint
from ding_lite.pipeline.lifecycle import Lifecycle
from ding_lite.pipeline.value_kinds import slots_of

_MOST_VALUES = 2_000
"""Number of values inside the inputs that are searched for a context."""
_CONTAINERS = (list, tuple, deque, Set, Mapping)
_CALLS = (functools.partial, MethodType, FunctionType)


class Input(NamedTuple):
    """One input of work."""

    name: str
    """Its name in the code of the work."""
    get: Callable[[], Any]
    """Returns the current value."""
    kind: str
    """argument, default, closure or self."""


def inputs_of(fn: Any, args: tuple[Any, ...]) -> list[Input]:
    """The inputs of a function: arguments, closure, defaults, and the object of a method."""
    given: dict[str, Any] = {}
    while isinstance(fn, functools.partial):
        args, given, fn = (*fn.args, *args), {**fn.keywords, **given}, fn.func
    names = positional_names(fn, len(args))
    found = [_constant(name, value, "argument") for name, value in (*zip(names, args), *given.items())]
    passed = {one.name for one in found}
    if not isinstance(fn, FunctionType):
        found.append(_constant("self", attribute_of(fn, "__self__", fn), "self"))
    code = attribute_of(fn, "__func__", fn)
    if isinstance(code, FunctionType):
        cells = zip(code.__code__.co_freevars, code.__closure__ or ())
        found += [Input(name, functools.partial(content_of, cell), "closure") for name, cell in cells]
        positional = code.__code__.co_varnames[: code.__code__.co_argcount]
        defaults = code.__defaults__ or ()
        values = (*zip(positional[len(positional) - len(defaults) :], defaults), *(code.__kwdefaults__ or {}).items())
        found += [_constant(name, value, "default") for name, value in values if name not in passed]
    return found


def _constant(name: str, value: Any, kind: str) -> Input:
    return Input(name, lambda: value, kind)


# Refused inputs.


def require_work(fn: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuse functions that cannot be deferred, and wrong arguments.

    Raises:
        TypeError: `fn` is not callable, is an async or generator function, does not take these arguments, or gets a context as
            an argument or from its closure.
    """
    if not callable(fn):
        raise TypeError(
            f"task.defer() wants a function and then its arguments, got {reprlib.repr(fn)} of type {type(fn).__name__}. "
            "Do not call the function there: write task.defer(work, 3), not task.defer(work(3))."
        )
    name = name_of(fn)
    if named:
        shown = ", ".join(f"{key}=..." for key in named)
        raise TypeError(
            f"task.defer({name}, {shown}) takes arguments by position only: write "
            f"task.defer(functools.partial({name}, {shown}))."
        )
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    _refuse_functions_that_only_begin(inner, name)
    try:
        signature: inspect.Signature | None = signature_of(fn)
    except (ValueError, TypeError):  # some builtins have none
        signature = None
    if signature is not None:
        try:
            signature.bind(*args)
        except TypeError as error:
            raise TypeError(f"task.defer({name}): {describe_call(fn)} takes {signature}: {error}.") from None
    way = _way_to_context(fn, args)
    if way is not None:
        _refuse_context(fn, way)


def _refuse_functions_that_only_begin(fn: Any, name: str) -> None:
    calls = (fn, call_of(fn))
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in calls):
        raise TypeError(f"task.defer({name}) got an async function, which would not be awaited: write a plain function.")
    if any(inspect.isgeneratorfunction(one) for one in calls):
        raise TypeError(
            f"task.defer({name}) got a generator function: a call does no work until its values are read. Write a "
            "function that returns them, such as `return list(values())`."
        )


def _refuse_context(fn: Any, way: str) -> NoReturn:
    how = f"uses {way}, a context," if way else "is given a context,"
    place = f", {location_of(fn)}" if location_of(fn) else ""
    raise TypeError(
        f"task.defer({name_of(fn)}){place}: the work {how} which the iteration changes while the "
        "work runs. Read the values first, and pass them: task.defer(work, ctx.train_iter)."
    )


class _Place(NamedTuple):
    """A value that work can reach."""

    name: str
    around: str
    """The functions around it, for the message."""
    value: Any
    is_attribute: bool
    """Whether it is an attribute of an object; objects inside it are not searched."""


def _way_to_context(fn: Any, args: tuple[Any, ...]) -> str | None:
    """The code by which the work reaches a context; "" if it is an argument, None if it reaches none."""
    first = inputs_of(fn, args)
    if any(one.kind == "argument" and isinstance(one.get(), Context) for one in first):
        return ""
    left = deque(_Place(one.name, "", one.get(), False) for one in first)
    seen: dict[int, Any] = {}  # kept alive, so that no other gets its address
    while left and len(seen) < _MOST_VALUES:
        place = left.popleft()
        if isinstance(place.value, Context):
            return f"`{place.name}`{place.around}"
        if not is_scalar(place.value) and id(place.value) not in seen:
            seen[id(place.value)] = place.value
            left += _inside(place)
    return None


def _inside(place: _Place) -> Iterator[_Place]:
    """Items of containers, inputs of functions, and attributes of objects."""
    name, around, value, is_attribute = place
    if isinstance(value, _CALLS):
        inner = f" in `{name}`{around}"
        yield from (_Place(one.name, inner, one.get(), is_attribute) for one in inputs_of(value, ()))
    elif isinstance(value, _CONTAINERS):
        for way, item in _items(value):
            yield _Place(f"{name}{way}", around, item, is_attribute)
    elif not is_attribute and not isinstance(value, (type, ModuleType, Lifecycle)):
        for attribute, item in list(attribute_of(value, "__dict__", {}).items()):
            yield _Place(f"{name}.{attribute}", around, item, True)
        for slot in slots_of(type(value)):
            if has_attribute(value, slot):
                yield _Place(f"{name}.{slot}", around, getattr(value, slot), True)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        pairs = itertools.islice(list(value.items()), _MOST_VALUES)
        return ((f"[{key!r}]", item) for key, item in pairs)
    if isinstance(value, Set):
        return (("", item) for item in itertools.islice(list(value), _MOST_VALUES))
    return ((f"[{index}]", item) for index, item in enumerate(itertools.islice(list(value), _MOST_VALUES)))


# What must not change until the result is taken.


class InputFingerprints:
    """What work is given, as it is before the work and behind it: containers, arrays and torch modules, not other objects."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._inputs, self._name = inputs_of(fn, args), name_of(fn)
        self._at_first = self._at_end = self._now()

    def _now(self) -> list[Print]:
        return [fingerprint(one.get(), data_alone=True) for one in self._inputs]

    def take(self) -> None:
        """Take the fingerprints at the end of the work."""
        self._at_end = self._now()

    def problem(self, owns: bool) -> str | None:
        """Which input has changed, and how to prevent that; None if none has.

        Args:
            owns: whether the work itself may change its inputs; then only later changes count.
        """
        now = self._now()
        for one, at_first, at_end, last in zip(self._inputs, self._at_first, self._at_end, now):
            while_it_ran = None if owns else changed(at_first, at_end, private="all")
            if while_it_ran is not None:
                return (
                    f"`{one.name}{while_it_ran}`, {_KINDS[one.kind]}, was changed while the work ran. If a middleware "
                    f"changes it, the result depends on which is faster. {_fix(one, self._name)} If the work changes it, "
                    "return the new value instead. If that is not possible and nothing else changes the input, set "
                    "`work.changes_inputs = True` on the object that task.defer() returns."
                )
            later = changed(at_end, last, private="all")
            if later is not None:
                return (
                    f"`{one.name}{later}`, {_KINDS[one.kind]}, was changed after the work had ended and before its result was "
                    "taken. On several threads, the change may happen while the work runs, and the result depends on which is "
                    f"faster. {_fix(one, self._name)}"
                )
        return None


_KINDS = {
    "argument": "an argument",
    "default": "a default",
    "closure": "a variable of its closure",
    "self": "the object of the method",
}


def _fix(one: Input, work: str) -> str:
    value, name = one.get(), one.name
    torch = sys.modules.get("torch")
    if one.kind == "self":
        is_method = not _is_module(value) or hasattr(type(value), work)
        return f"Defer the method of a copy: task.defer(copy.deepcopy(it){f'.{work}' if is_method else ''})."
    if is_scalar(value):
        return f"Pass its value as an argument: task.defer({work}, {name})."
    if _is_module(value):
        copied = f"copy.deepcopy({name})"
    elif torch is not None and isinstance(value, torch.Tensor):
        copied = f"{name}.clone()"
    elif isinstance(value, Mapping) and any(torch is not None and isinstance(it, torch.Tensor) for it in list(value.values())):
        return f"Pass a copy: copy.deepcopy({name}); for a policy's weights, policy.get_weights()."
    elif isinstance(value, memoryview):
        copied = f"bytes({name})"
    elif has_attribute(value, "copy") and not _holds_others(value):
        copied = f"{name}.copy()"
    else:
        copied = f"copy.deepcopy({name})"
    return f"Pass a copy: {copied}."


def _holds_others(value: Any) -> bool:
    """Whether a copy would hold the same objects."""
    if isinstance(value, _CONTAINERS):
        return not all(is_scalar(it) for _, it in _items(value))
    return bool(attribute_of(attribute_of(value, "dtype"), "hasobject", False))


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)
