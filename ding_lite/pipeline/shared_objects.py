"""Shared objects: those that middleware of several lanes hold, and that a contract does not name."""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from ding_lite.basics.attribute_reads import attributes_read
from ding_lite.basics.closures import closure_of
from ding_lite.basics.configs import Config
from ding_lite.pipeline.contexts import is_scalar
from ding_lite.pipeline.contracts import Contract, state_groups
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.fingerprints import changed, fingerprint

_NO_STATE = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type, Config, Contract)
_DATA = (list, dict, set, deque, bytearray)
_MOST_INSIDE = 5_000  # objects that are looked at
_ACTING = " If it only acts, let it hold the mode, such as policy.eval_mode, and name that instead."
_MADE_TO_BE_SHARED = frozenset({"threading", "_thread", "queue", "_queue"})


def objects_held(fn: Any) -> Iterator[tuple[str, Any]]:
    """Stateful objects that a middleware holds, by name: free variables and globals, or attributes of an object."""
    if inspect.isfunction(fn):
        yield from ((name, value) for name, value in closure_of(fn) if needs_contract(value))
        for name in fn.__code__.co_names:
            if name in fn.__globals__ and needs_contract(fn.__globals__[name]):
                yield name, fn.__globals__[name]
    else:
        yield from ((f"self.{name}", value) for name, value in getattr(fn, "__dict__", {}).items() if needs_contract(value))


def unnamed_objects(pipeline: Sequence[Entry]) -> Iterator[str]:
    """Advice for each middleware that holds an object named by a contract on another lane, but not by its own.

    An object and those in its `shares_state_with` count as one: a contract that names one of them names all.
    """
    groups = state_groups([thing for entry in pipeline if entry.contract is not None for thing in entry.contract.uses])
    for entry in pipeline:
        terms = entry.contract
        for name, thing in objects_held(entry.fn) if terms is not None else ():
            same, leader = groups.get(id(thing), (thing,)), getattr(thing, "leader", None)
            named = same if leader is None else (*same, *groups.get(id(leader), (leader,)))
            if terms is None or _is_any(terms.uses, named) or _reads_named_alone(entry.fn, name, thing, terms.uses):
                continue
            for other in pipeline:
                theirs = other.contract
                if theirs is None or theirs.lane == terms.lane:
                    continue
                if _is_any(theirs.uses, same):
                    yield (
                        f"{entry.name} ({entry.location}) holds {name}, a {type(thing).__name__} that {other.name} uses, "
                        f"and its contract does not name it. Nothing orders the two, so if it touches it, add it: "
                        f"@contract(..., uses=({name},)).{_ACTING if hasattr(thing, 'eval_mode') else ''}"
                    )
                    break


def _reads_named_alone(fn: Any, name: str, thing: Any, uses: Sequence[Any]) -> bool:
    """Whether a function does nothing with an object but read attributes that its contract names, as in `policy.eval_mode`."""
    attributes = attributes_read(fn.__code__, name) if isinstance(fn, FunctionType) else None
    return bool(attributes) and all(_is_any(uses, (getattr(thing, attribute, None),)) for attribute in attributes or ())


def _is_any(uses: Sequence[Any], things: Sequence[Any]) -> bool:
    return any(use is thing for use in uses for thing in things)


def objects_inside_others(pipeline: Sequence[Entry]) -> Iterator[str]:
    """Advice for each middleware that uses an object, such as an environment, with data inside that a contract on another lane
    names and its own does not."""
    for entry in pipeline:
        if entry.contract is None:
            continue
        elsewhere = {
            id(thing): (other, thing)
            for other in pipeline
            if other.contract is not None and other.contract.lane != entry.contract.lane
            for thing in other.contract.uses
            if isinstance(thing, _DATA) and not _is_named(thing, entry.contract)
        }
        for owner in entry.contract.uses if elsewhere else ():
            found = next((elsewhere[key] for key in objects_inside([owner], _inside) if key in elsewhere), None)
            if found is not None:
                other, thing = found
                yield (
                    f"{entry.name} ({entry.location}) uses a {type(owner).__name__} that holds a {type(thing).__name__}, which "
                    f"{other.name} ({other.location}) uses. Nothing orders the two, so if {other.name} changes it, name it in "
                    "both contracts."
                )


def objects_inside(things: Iterable[Any], inner_of: Callable[[Any], Iterable[Any]]) -> dict[int, Any]:
    """These objects and those inside them, by id, the nearest first. It goes no deeper once it has found 5,000.

    Args:
        things: the objects.
        inner_of: function of an object that returns the values in it. Numbers and strings are left out.
    """
    waiting = deque(things)
    seen = {id(one): one for one in waiting}
    while waiting and len(seen) < _MOST_INSIDE:
        for inner in inner_of(waiting.popleft()):
            if not is_scalar(inner) and id(inner) not in seen:
                seen[id(inner)] = inner
                waiting.append(inner)
    return seen


def _inside(value: Any) -> list[Any]:
    """Attributes and items, but not the numbers of modules and arrays."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, deque)):
        return list(value)
    if isinstance(value, _NO_STATE) or hasattr(value, "__array__") or hasattr(value, "named_parameters"):
        return []
    return list(getattr(value, "__dict__", {}).values())


class Watched:
    """An object that middleware of two lanes hold and no contract names: harmless as long as it does not change.

    Args:
        thing: the object.
        holders: each middleware that holds it, with its name there.
    """

    def __init__(self, thing: Any, holders: Sequence[tuple[Entry, str]]) -> None:
        self.thing, self.holders = thing, holders
        self._print = fingerprint(thing)
        self._is_reported = False

    def warn_if_changed(self) -> None:
        """Warn once if it has changed, and name its holders."""
        where = None if self._is_reported else changed(self._print, fingerprint(self.thing), "numbers")
        if where is None:
            return
        self._is_reported = True
        first, name = self.holders[0]
        second, _ = next((entry, it) for entry, it in self.holders if _lane_of(entry) != _lane_of(first))
        named = f"uses=({name},)" if name.isidentifier() and name != "self" else "uses=(the object,)"
        warnings.warn(
            f"where iterations overlap, {first.name} ({first.location}) and {second.name} ({second.location}) hold the same "
            f"{type(self.thing).__name__}, {name}, which changes{f' (at {where})' if where else ''}, and neither contract "
            "names it. Nothing orders the two, so the result depends on which is faster: add it to both, "
            f"@contract(..., {named}). A decorator above a method cannot name its object: make such middleware in a factory.",
            stacklevel=2,
        )


def watched_objects(pipeline: Sequence[Entry]) -> dict[int, list[Watched]]:
    """Objects that middleware of two lanes hold and no contract names, by id of each function that holds them."""
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
    """Objects that a middleware holds, also through partials, and the object of a bound method."""
    while isinstance(fn, (functools.partial, MethodType)):
        if isinstance(fn, MethodType):
            yield "self", fn.__self__
            fn = fn.__func__
        else:
            values = [*fn.args, *fn.keywords.values()]
            yield from ((f"argument {index}", value) for index, value in enumerate(values) if needs_contract(value))
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
    """Whether a contract names the object or its leader."""
    leader = getattr(thing, "leader", None)
    return any(it is thing or (leader is not None and it is leader) for it in terms.uses)


def needs_contract(value: object) -> bool:
    """Whether contracts name a value: it may change, and is neither a function, a configuration nor made to be shared."""
    if is_scalar(value) or isinstance(value, _NO_STATE) or _is_task(value) or type(value).__module__ in _MADE_TO_BE_SHARED:
        return False
    return isinstance(value, (list, dict, set, deque, bytearray)) or hasattr(value, "__dict__") or hasattr(value, "__array__")


def _is_task(value: object) -> bool:
    return all(hasattr(value, name) for name in ("use", "run", "finish"))
