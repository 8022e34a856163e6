"""Suggestions: the contract to write for a function without one, from what it was seen to touch."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from ding_lite.basics.configs import Config
from ding_lite.pipeline.checks import Entry
from ding_lite.pipeline.contexts import is_scalar
from ding_lite.pipeline.contracts import Contract
from ding_lite.pipeline.fingerprints import changed, fingerprint

_NO_STATE = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type, Config, Contract)
_MADE_TO_BE_SHARED = frozenset({"threading", "_thread", "queue", "_queue"})


@dataclasses.dataclass
class _Seen:
    """What one function touched, in the order in which it did."""

    fn: Callable[..., Any]
    name: str
    location: str
    terms: dict[str, list[str]]
    attributes: frozenset[str]
    """Of an object before its first call: those that its `__init__` has made."""


class Touches:
    """What the functions without a contract were seen to touch, in the checked iterations of all runs of a task."""

    def __init__(self) -> None:
        self._seen: dict[object, _Seen] = {}
        """By what the contract is written for: a function in the script, or a class with `__call__`."""
        self._owners: dict[object, Callable[..., Any]] = {}

    def note_end(self, end: Callable[..., Any], fn: Callable[..., Any]) -> None:
        """Let what `end` touches stand in the contract of `fn`, whose `end_run` it is."""
        if isinstance(end, FunctionType):  # a method says itself whose it is
            self._owners[_written_as(end)] = fn

    def recorder(self, fn: Callable[..., Any], name: str, location: str, is_second: bool) -> Callable[[str, str], None]:
        """What to call with "read" or "write" and a field when this half of the function touches it.

        What is done when a run has ended counts as a second half of the middleware whose `end_run` it is.
        """
        owner: object = self._owners.get(_written_as(fn), fn)
        if owner is fn and isinstance(fn, MethodType) and fn.__func__.__name__ == "end_run":
            owner = fn.__self__
        if owner is not fn:
            is_second, fn = True, cast("Callable[..., Any]", owner)
        suffix = "_after" if is_second else ""
        attributes = frozenset(f"self.{attribute}" for attribute in getattr(fn, "__dict__", {}))
        seen = self._seen.setdefault(_written_as(fn), _Seen(fn, name, location, {}, attributes))

        def note(verb: str, field: str) -> None:
            names = seen.terms.setdefault(f"{verb}s{suffix}", [])
            if field not in names and field not in seen.terms.get(f"{verb}s", ()):
                names.append(field)

        return note

    def suggest(self, pipeline: Sequence[Entry]) -> str:
        """For each function without a contract its place, and the decorator to paste above it.

        Args:
            pipeline: says which stage is likely: that of the middleware before it.
        """
        parts = [f"{seen.name} ({seen.location}):\n    {_decorator(seen, pipeline)}" for seen in self._seen.values()]
        return "\n".join(parts)

    def __len__(self) -> int:
        return len(self._seen)


def _decorator(seen: _Seen, pipeline: Sequence[Entry]) -> str:
    """The contract as code, and where it goes."""
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
    remarks = ["above its other decorators"] if hasattr(_inner(fn), "__wrapped__") else []
    hidden = ", ".join(name for name, _ in _given_later(fn))
    if hidden:
        remarks.append(
            f"a decorator cannot name {hidden}, which it holds: where others touch that too, write a class with __call__, and "
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
    """What is the same for all middleware whose contract is written in one place."""
    function = _function_of(fn)
    return type(fn) if function is None else function.__code__


def _given_later(fn: Any) -> Iterator[tuple[str, Any]]:
    """What a bound method or a partial holds that has a state of its own, by name, which the function does not know."""
    while isinstance(fn, (functools.partial, MethodType)):
        if isinstance(fn, MethodType):
            yield from objects_held(fn.__self__)
            fn = fn.__func__
        else:
            names = list(inspect.signature(fn.func).parameters)
            given = {**dict(zip(names, fn.args)), **fn.keywords}
            yield from ((name, value) for name, value in given.items() if _has_state(value))
            fn = fn.func


def _listed(names: Any) -> str:
    found = [str(name).replace("'", '"') for name in names]
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})"


def objects_held(fn: Any) -> Iterator[tuple[str, Any]]:
    """What a middleware holds that has a state of its own, by name: free variables and globals, or attributes of an object."""
    if inspect.isfunction(fn):
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:  # not set yet
                continue
            if _has_state(value):
                yield name, value
        for name in fn.__code__.co_names:
            if name in fn.__globals__ and _has_state(fn.__globals__[name]):
                yield name, fn.__globals__[name]
    else:
        yield from ((f"self.{name}", value) for name, value in getattr(fn, "__dict__", {}).items() if _has_state(value))


def unnamed_objects(pipeline: Sequence[Entry]) -> Iterator[str]:
    """What to add for each middleware that holds an object which the contract of one on another lane names, and its own not."""
    for entry in pipeline:
        terms = entry.contract
        for name, thing in objects_held(entry.fn) if terms is not None else ():
            if terms is None or _is_named(thing, terms):
                continue
            for other in pipeline:
                theirs = other.contract
                if theirs is None or theirs.lane == terms.lane:
                    continue
                if any(it is thing for it in theirs.uses):
                    yield (
                        f"{entry.name} ({entry.location}) holds {name}, a {type(thing).__name__} that {other.name} uses, "
                        f"and its contract does not name it. Nothing orders the two, so if it is touched add it: "
                        f"@contract(..., uses=({name},))."
                    )
                    break


class Watched:
    """An object that middleware of two lanes hold and no contract names: harmless as long as nobody changes it.

    Args:
        thing: the object.
        holders: each middleware that holds it, with its name there.
    """

    def __init__(self, thing: Any, holders: Sequence[tuple[Entry, str]]) -> None:
        self.thing, self.holders = thing, holders
        self._print = fingerprint(thing)
        self._is_told = False

    def warn_if_changed(self) -> None:
        """Say who holds it, once, if it is not what it was."""
        where = None if self._is_told else changed(self._print, fingerprint(self.thing), "numbers")
        if where is None:
            return
        self._is_told = True
        first, name = self.holders[0]
        second, _ = next((entry, it) for entry, it in self.holders if _lane_of(entry) != _lane_of(first))
        named = f"uses=({name},)" if name.isidentifier() and name != "self" else "uses=(the object,)"
        warnings.warn(
            f"where iterations overlap, {first.name} ({first.location}) and {second.name} ({second.location}) hold the same "
            f"{type(self.thing).__name__}, {name}, which changes{f' (at {where})' if where else ''}, and neither contract "
            "names it. Nothing orders the two, so that the result depends on which is faster: add it to both, "
            f"@contract(..., {named}). A decorator above a method cannot name its object: make such middleware in a factory.",
            stacklevel=2,
        )


def watched_objects(pipeline: Sequence[Entry]) -> dict[int, list[Watched]]:
    """What middleware of two lanes hold and no contract names, by id of each function that holds it."""
    known = [entry for entry in pipeline if entry.contract is not None]
    holders: dict[int, list[tuple[Entry, str]]] = {}
    things: dict[int, Any] = {}
    for entry in known:
        for name, thing in _held_in_all(entry.fn):
            things[id(thing)] = thing
            holders.setdefault(id(thing), []).append((entry, name))
    found: dict[int, list[Watched]] = {}
    for key, several in holders.items():
        if len({_lane_of(entry) for entry, _ in several}) < 2 or any(_knows(entry, things[key]) for entry in known):
            continue
        watched = Watched(things[key], several)
        for entry, _ in several:
            found.setdefault(id(entry.fn), []).append(watched)
    return found


def _lane_of(entry: Entry) -> str:
    return "" if entry.contract is None else entry.contract.lane


def _held_in_all(fn: Any) -> Iterator[tuple[str, Any]]:
    """What a middleware holds, through partials, and the object that a method is bound to."""
    while isinstance(fn, (functools.partial, MethodType)):
        if isinstance(fn, MethodType):
            yield "self", fn.__self__
            fn = fn.__func__
        else:
            values = [*fn.args, *fn.keywords.values()]
            yield from ((f"argument {index}", value) for index, value in enumerate(values) if _has_state(value))
            fn = fn.func
    yield from objects_held(inspect.unwrap(fn) if inspect.isfunction(fn) else fn)


def _knows(entry: Entry, thing: Any) -> bool:
    """Whether the contract names the object, or one that holds it or that it holds, such as a mode of a policy."""
    terms = entry.contract
    if terms is None or isinstance(thing, logging.Logger) or _is_named(thing, terms):
        return True
    inside = {id(value) for value in getattr(thing, "__dict__", {}).values()}
    return any(
        id(use) in inside or any(value is thing for value in getattr(use, "__dict__", {}).values()) for use in terms.uses
    )


def _is_named(thing: Any, terms: Contract) -> bool:
    """Whether a contract names the object, or the one whose state it follows."""
    leader = getattr(thing, "leader", None)
    return any(it is thing or (leader is not None and it is leader) for it in terms.uses)


def _has_state(value: object) -> bool:
    if is_scalar(value) or isinstance(value, _NO_STATE) or _is_task(value) or type(value).__module__ in _MADE_TO_BE_SHARED:
        return False
    return isinstance(value, (list, dict, set, deque, bytearray)) or hasattr(value, "__dict__") or hasattr(value, "__array__")


def _is_task(value: object) -> bool:
    return all(hasattr(value, name) for name in ("use", "run", "finish"))


def _likely_stage(fn: Callable[..., Any], pipeline: Sequence[Entry]) -> str:
    stage = "record"
    for entry in pipeline:
        if entry.fn is fn:
            break
        if entry.contract is not None and entry.contract.stage:
            stage = entry.contract.stage
    return {"evaluate": "explore", "explore": "explore", "collect": "process"}.get(stage, stage)
