"""Suggestions: contracts for functions without one, from the fields that they touched."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any, cast

from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.basics.signatures import positional_names
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.held_objects import needs_contract, objects_held


@dataclasses.dataclass
class _Seen:
    """The fields that a function touched, in order."""

    fn: Callable[..., Any]
    name: str
    location: str
    terms: dict[str, list[str]]
    attributes: frozenset[str]
    """Attributes of an object before its first call: those that its `__init__` has set."""


class Touches:
    """The fields that functions without a contract touched, in the checked iterations of all runs of a task."""

    def __init__(self) -> None:
        self._seen: dict[object, _Seen] = {}
        """By the place of the contract: a function in the script, or a class with `__call__`."""
        self._owners: dict[object, Callable[..., Any]] = {}

    def note_end(self, end: Callable[..., Any], fn: Callable[..., Any]) -> None:
        """Count the accesses of `end` for `fn`, because it is the `end_run` of `fn`."""
        if isinstance(end, FunctionType):  # a method knows its object itself
            self._owners[_written_as(end)] = fn

    def observer(self, fn: Callable[..., Any], name: str, location: str, is_second: bool) -> Callable[[str, str], None]:
        """A function to call with "read" or "write" and a field when this step touches the field.

        An `end_run` counts as a second half of its middleware.
        """
        if is_of_ding_lite(type(fn).__module__) and _function_of(fn) is None:  # several as one: its parts are asked too
            return lambda verb, field: None
        owner: object = self._owners.get(_written_as(fn), fn)
        if owner is fn and isinstance(fn, MethodType) and fn.__func__.__name__ == "end_run":
            owner = fn.__self__
        if owner is not fn:
            is_second, fn = True, cast("Callable[..., Any]", owner)
        suffix = "_after" if is_second else ""
        attributes = frozenset(f"self.{attribute}" for attribute in attribute_of(fn, "__dict__", {}))
        seen = self._seen.setdefault(_written_as(fn), _Seen(fn, name, location, {}, attributes))

        def note(verb: str, field: str) -> None:
            names = seen.terms.setdefault(f"{verb}s{suffix}", [])
            if field not in names and field not in seen.terms.get(f"{verb}s", ()):
                names.append(field)

        return note

    def suggest(self, pipeline: Sequence[Entry]) -> str:
        """For each function without a contract, its place and the decorator to paste above it.

        Args:
            pipeline: the pipeline; the suggested stage is that of the previous middleware.
        """
        parts = [f"{seen.name} ({seen.location}):\n    {_decorator(seen, pipeline)}" for seen in self._seen.values()]
        return "\n".join(parts)

    def __len__(self) -> int:
        return len(self._seen)


def _decorator(seen: _Seen, pipeline: Sequence[Entry]) -> str:
    """The contract as code, and its place."""
    fn, function = seen.fn, _function_of(seen.fn)
    terms = [f"{term}={_listed(repr(name) for name in names)}" for term, names in sorted(seen.terms.items()) if names]
    held = [name for name, _ in objects_held(fn if function is None else function)]
    objects = [name for name in held if function is not None or name in seen.attributes]
    if objects:
        terms.append(f"uses={_listed(objects)}")
    terms.append(f"stage={_likely_stage(fn, pipeline)!r}")
    call = f"contract({', '.join(terms)})"
    if function is None:
        return f"{call}(self)  # last in __init__"
    if function.__name__ == "<lambda>":
        return f"{call}(lambda ...)  # around the lambda"
    remarks = ["above its other decorators"] if has_attribute(_inner(fn), "__wrapped__") else []
    hidden = ", ".join(name for name, _ in _given_later(fn))
    if hidden:
        remarks.append(
            f"a decorator cannot name {hidden}, which it holds: if others touch it too, write a class with __call__, and "
            "the contract in its __init__"
        )
    return f"@{call}  # {'; '.join(remarks)}" if remarks else f"@{call}"


def _inner(fn: Any) -> Any:
    """A middleware without the partials and the object that it is bound to."""
    while isinstance(fn, (functools.partial, MethodType)):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    return fn


def _function_of(fn: Callable[..., Any]) -> FunctionType | None:
    """The function as the script wrote it, inside its decorators; None for an object of a class with `__call__`."""
    inner = inspect.unwrap(_inner(fn))
    return inner if isinstance(inner, FunctionType) else None


def _written_as(fn: Callable[..., Any]) -> object:
    """An object that is the same for all middleware with their contract in one place."""
    function = _function_of(fn)
    return type(fn) if function is None else function.__code__


def _given_later(fn: Any) -> Iterator[tuple[str, Any]]:
    """Stateful objects, by name, that a bound method or partial holds and the function itself does not know."""
    while isinstance(fn, (functools.partial, MethodType)):
        if isinstance(fn, MethodType):
            yield from objects_held(fn.__self__)
            fn = fn.__func__
        else:
            names = positional_names(fn.func, len(fn.args))
            given = {**dict(zip(names, fn.args)), **fn.keywords}
            yield from ((name, value) for name, value in given.items() if needs_contract(value))
            fn = fn.func


def _listed(names: Any) -> str:
    found = [str(name).replace("'", '"') for name in names]
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})"


def _likely_stage(fn: Callable[..., Any], pipeline: Sequence[Entry]) -> str:
    stage = "record"
    for entry in pipeline:
        if entry.fn is fn:
            break
        if entry.contract is not None and entry.contract.stage:
            stage = entry.contract.stage
    return {"evaluate": "explore", "explore": "explore", "collect": "process"}.get(stage, stage)
