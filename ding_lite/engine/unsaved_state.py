"""Unsaved state: what middleware and classes of the script keep from one iteration to the next, and no `state_dict` covers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import re
import sys
import threading
import weakref
from collections.abc import Container, Iterator, Mapping, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

from ding_lite.basics.attribute_reads import cached_properties, instructions_of, listed_in_not_saved, names_of
from ding_lite.basics.closures import closure_of, function_of, globals_of, imports_in, names_in, parts_of
from ding_lite.basics.messages import name_of
from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.basics.origins import is_of_ding_lite, is_of_script, module_of, package_of
from ding_lite.engine.hidden_middleware import hidden_middleware
from ding_lite.engine.restarted_values import restarted_by
from ding_lite.engine.run_parts import environments_of, has_code_of_script, has_state, has_state_itself, holder_of, holders_of
from ding_lite.engine.scratch_values import ScratchValues
from ding_lite.engine.state_names import StateNames, set_in_forward, state_names
from ding_lite.pipeline.contexts import SCALARS, Context
from ding_lite.pipeline.contracts import leader_of, state_groups
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.fingerprints import Print, changes, fingerprint, with_what_is_inside
from ding_lite.pipeline.held_objects import is_task
from ding_lite.pipeline.shared_objects import objects_inside
from ding_lite.pipeline.used_middleware import UsedMiddleware, middleware_of
from ding_lite.pipeline.value_kinds import (
    MOST_PARTS,
    HashedBytes,
    data_in_class,
    holds_data_alone,
    is_array_or_tensor,
    is_data,
    is_random_generator,
    may_change,
    position_of,
    slots_of,
    usual_parts,
)

Parts = Sequence[tuple[str, Any]]


class Kind(Enum):
    """What remembers something."""

    MIDDLEWARE = "a middleware"
    USED = "an object of the script that a middleware of the library uses"
    CALLED = "a function of the script that a middleware of the library calls"
    DERIVED = "an object with an inherited `state_dict`"
    FORGETTING = "an object with a `state_dict` of its own class"
    ACTING = "a copy of a policy that acts"
    CONTEXT = "the class of the context"


Key = tuple[Kind, int, str]
"""What remembers something, its number among those of its kind, and its name."""

_MOST_PLACES = 4  # in one warning
_MOST_ITEMS = 100  # of a list or dict in an object with a state, where such objects are looked for
_TOKENS = itertools.count()
"""Stand for the content of iterators and queues that cannot be read: they have changed, because each use changes them."""
_WORK: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""A number for each work that was delegated, such as a `concurrent.futures.Future`."""
_NAME_ALONE: Parts = (("", None),)
"""Of a function or class that holds nothing; not empty, because a value without parts is left out."""
_NO_OBJECTS = frozenset({*SCALARS, ModuleType, FunctionType})
"""Classes of values that are neither saved nor hold what is saved."""


class Memories:
    """Finds middleware that remember something and have no state, by comparing what they hold at two moments.

    It looks at functions, their closures, default values, attributes and the global variables that they name; at methods and
    partial functions; at objects of the script's classes, their attributes, slots and class attributes; and from there at
    numbers, containers, arrays, torch modules, optimizers, iterators and random generators; at most at 20,000 values for each
    middleware. It does not look at objects that are saved, at environments, at files, or at objects of other libraries without
    a `state_dict`. But of saved objects, it looks at the attributes that a class of the script adds to an inherited
    `state_dict`, or that its own `state_dict` does not name; and at objects of the script without a state that a middleware of
    ding_lite uses. It leaves out attributes that a class lists in `not_saved`, and those that are set before each use.
    """

    def __init__(self) -> None:
        self._scratch = ScratchValues()
        self._context: type | None = None
        self._first: dict[Key, Print] = {}
        self._reported: set[tuple[Key, str]] = set()

    @property
    def is_begun(self) -> bool:
        """Whether there is something to compare with."""
        return bool(self._first)

    def begin(self, pipeline: Sequence[Entry], ctx: Any = None) -> Iterator[str]:
        """Look at what is held now. Returns warnings of middleware of the library that are hidden in functions.

        Args:
            pipeline: the middleware.
            ctx: the first context.
        """
        used = middleware_of(pipeline)
        unsaved = [one for it in used for one in (*_used_without_state(it), *_called_by(it))]
        self._context = type(ctx) if is_of_script(type(ctx).__module__) else None
        self._scratch = ScratchValues([*(it.fn for it in used), *_owners(used), *unsaved, self._context])
        self._first = _prints_of(pipeline, self._scratch, self._context)
        return (it.warning for it in hidden_middleware(pipeline, _owners(used)))

    def changes(self, pipeline: Sequence[Entry]) -> Iterator[str]:
        """A warning for each middleware or object whose memories have changed since `begin`; it names each memory once."""
        for key, now in _prints_of(pipeline, self._scratch, self._context).items():
            before = self._first.setdefault(key, now)
            if before is now:
                continue
            _take_new_caches(before, now)
            _take_new_names(before, now)
            places = {_without_indices(place): place.lstrip(".") for place in changes(before, now, private="all")}
            new = {memory: place for memory, place in _outermost(places).items() if (key, memory) not in self._reported}
            self._reported.update((key, memory) for memory in new)
            if new:
                kind, _, name = key
                yield _warning(name, list(new.values()), kind)


class _Cached:
    """The value of a cached property: that it is computed, or computed again, is no change."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def parts(self) -> Parts:
        return [("", self.value)]


_OF_CACHED = next(
    iter(fingerprint(_Cached(None), inside_of=lambda it: [("", None)] if type(it) is _Cached else None).values())
).content


def _take_new_caches(before: Print, now: Print) -> None:
    """Take the values of cached properties that are not those of before as if they had been there."""
    for key in [key for key, part in now.items() if part.content == _OF_CACHED]:
        value = hash((key, ""))  # its key in a fingerprint; it has none if it is saved elsewhere, such as a network
        was, is_now = before.get(value), now.get(value)
        if key in before and was and is_now and was.identity == is_now.identity is not None:
            continue
        if key in before:
            for inner in with_what_is_inside(before, [key]):
                del before[inner]
        if now[key].parent in before:
            before.update(with_what_is_inside(now, [key]))


def _take_new_names(before: Print, now: Print) -> None:
    """Take the names of new attributes as if they had been there: those that count are parts of their own."""
    for key, part in now.items():
        if key in before and _is_with_more_names(before[key].content, part.content):
            before[key] = before[key]._replace(content=part.content)


def _is_with_more_names(before: Any, now: Any) -> bool:
    """Whether the contents in two fingerprints are of an object that has the names of more attributes now."""
    is_of_names = [
        type(it) is tuple and len(it) == 2 and (type(it[0]), type(it[1])) == (str, frozenset) for it in (before, now)
    ]
    return all(is_of_names) and before[0] == now[0] and before[1] < now[1]


def _without_indices(place: str) -> str:
    """A place without indices and keys, of which a growing list or dict has new ones in each iteration."""
    return re.sub(r"\[.*?\]", "", place)


def _outermost(places: Mapping[str, str]) -> dict[str, str]:
    """Those of these places that are not inside another one, and private ones, which are often caches, at the end."""
    inside = {memory for memory in places for other in places if other not in ("", memory) and memory.startswith(f"{other}.")}
    return {memory: places[memory] for memory in sorted(places.keys() - inside, key=lambda it: ("._" in it, it))}


def _warning(name: str, places: Sequence[str], kind: Kind) -> str:
    named = [place for place in places if place][:_MOST_PLACES]
    more = [f"and {len(places) - len(named)} more"] if len(places) > len(named) > 0 else []
    begin = f"{name} remembers something from iteration to iteration"
    begin += f" ({', '.join([*named, *more])})" if named else ""
    leave_out = "If it does not matter, as in a cache, ignore this, or list the attribute in not_saved of its class."
    if kind is Kind.ACTING:
        return (
            f"{begin}, in the copy that collects, and no state has it, so a resumed run begins without it. Compute it from "
            "self.train_iter, which a copy has with its weights, or make it part of the recurrent state (get_initial_state). "
            f"Draw random numbers from self.rng or self.generator, which are saved. {leave_out}"
        )
    if kind is Kind.CONTEXT:
        return (
            f"{begin}, outside of its fields, and no state has it, so a resumed run begins without it. Keep a number in a kept "
            "field, or compute the value in a middleware with state_dict() and load_state_dict(state), which writes it to a "
            "field."
        )
    if kind is Kind.CALLED:
        return (
            f"{begin}, and has no state_dict, so a resumed run begins without it. Pass an object with __call__, state_dict() "
            f"and load_state_dict(state) itself, whose state is saved with the run. {leave_out}"
        )
    if kind is Kind.FORGETTING:
        return (
            f"{begin}, and its state_dict does not have it, so a resumed run begins without it. Add it to state_dict(), and "
            f"restore it in load_state_dict(state). {leave_out}"
        )
    if kind is Kind.DERIVED:
        return (
            f"{begin}, which its inherited state_dict does not have, so a resumed run begins without it. Override state_dict() "
            "and load_state_dict(state), or keep a number in the context: self.keep(...). A policy saves what it gets by "
            f"self.attach(name, thing), a torch module its buffers. {leave_out}"
        )
    return (
        f"{begin}, and has no state_dict, so a resumed run begins without it. If the object has a state_dict, name it in the "
        "contract: uses=(it,). If not, write a class with state_dict() and load_state_dict(state), or keep a number in the "
        f"context: self.keep(...). {leave_out}"
    )


def _prints_of(pipeline: Sequence[Entry], scratch: ScratchValues, context: type | None) -> dict[Key, Print]:
    """Fingerprints of what each middleware without a state holds, by its position and name; of the attributes that classes
    of the script add to classes with a state; and of what the class of the context holds."""
    used = middleware_of(pipeline)
    single = {(Kind.MIDDLEWARE, position, it.name): it.fn for position, it in enumerate(used) if not it.is_around}
    found: dict[Key, Any] = {key: fn for key, fn in single.items() if not has_state_itself(fn)}
    unsaved = {id(thing): thing for it in used for thing in _used_without_state(it)}
    found |= {(Kind.USED, number, type(one).__name__): one for number, one in enumerate(unsaved.values())}
    called = {id(one): (it, one) for it in used for one in _called_by(it) if not has_state(one)}.values()
    found |= {(Kind.CALLED, number, f"{name_of(one)} in {it.name}"): one for number, (it, one) in enumerate(called)}
    owners = _owners(used)
    derived = _derived_in(owners)
    if context is not None:
        found[(Kind.CONTEXT, 0, context.__name__)] = _OfContext(context)
    is_of_library = not (derived or context is not None or any(map(_reaches_script, found.values())))
    objects_in = functools.partial(_objects_in, {*unsaved, *(id(one) for _, one in called)})
    saved = {} if is_of_library else objects_inside([*owners, *environments_of(pipeline)], objects_in)
    saved = {**saved, **{id(it.hidden): it.hidden for it in hidden_middleware(pipeline, owners)}}  # another warning names them
    restarts = _restarting_methods(owners)
    for kind in (Kind.DERIVED, Kind.FORGETTING):
        own = [(number, one) for number, one in enumerate(derived) if _has(one, kind)]
        found |= {(kind, number, type(one).__name__): _Own(one, kind, restarts.get(id(one))) for number, one in own}
    policies = {id(one): one for one in owners if has_attribute(one, "changed_by_acting")}.values()
    acting = [one for one in policies if is_of_script(type(one).__module__)]
    found |= {(Kind.ACTING, number, type(one).__name__): _Acting(one) for number, one in enumerate(acting)}
    # While `saved` holds them, no other object gets their id.
    return {key: fingerprint(fn, inside_of=functools.partial(_inside, saved, scratch)) for key, fn in found.items()}


def _used_without_state(used: UsedMiddleware) -> list[Any]:
    """Objects of the script without a state that a middleware of the library uses, such as a reward model."""
    if used.is_around or used.contract is None or not is_of_ding_lite(attribute_of(holder_of(used.fn), "__module__")):
        return []
    return [thing for thing in used.contract.uses if is_of_script(type(thing).__module__) and not has_state(thing)]


def _called_by(used: UsedMiddleware) -> Sequence[Any]:
    """Functions of the script that a middleware of the library calls, such as the metric of an evaluator."""
    called = () if used.is_around else attribute_of(holder_of(used.fn), "calls_of_script", ())
    return [one for one in called if has_code_of_script(one)]


def _derived_in(owners: Sequence[Any]) -> list[Any]:
    """The objects of classes of the script whose `state_dict` may leave something out: these objects, modules and attributes of
    them."""
    inside = [inner for one in owners for inner in _held_by(one)]
    modules = [module for one in owners if has_attribute(one, "named_parameters") for module in one.modules()]
    every = {id(one): one for one in (*owners, *modules, *inside)}
    return [
        one for one in every.values() if _names_of(one) is not None and not attribute_of(one, "is_copy", False)
    ]  # see _Acting


def _held_by(owner: Any) -> list[Any]:
    """The attributes of an object, and what is in those that are lists, tuples or dicts."""
    inside = [*attribute_of(owner, "__dict__", {}).values()]
    several = [it.values() if type(it) is dict else it for it in inside if type(it) in (list, tuple, dict)]
    return inside + [inner for it in several for inner in itertools.islice(it, _MOST_ITEMS)]


def _restarting_methods(owners: Sequence[Any]) -> dict[int, str]:
    """By id, the objects that begin anew with a method, of which only what comes before it is to be saved: those inside an
    object that names the method in `restarts_with`, as vector environments do, because their state replays what follows."""
    methods = [(one, attribute_of(one, "restarts_with")) for one in owners]
    return {id(inner): name for one, name in methods if isinstance(name, str) for inner in _held_by(one)}


def _names_of(thing: Any) -> StateNames | None:
    """What the `state_dict` of an object knows; None if it may know all, also because the object has one for itself alone."""
    kind: Any = type(thing)
    names = state_names(kind)
    return None if names is None or "state_dict" in attribute_of(thing, "__dict__", ()) else names


def _has(thing: Any, kind: Kind) -> bool:
    """Whether an object may have attributes of this kind: added to an inherited `state_dict`, or forgotten by its own."""
    names = _names_of(thing)
    if names is None or names.added is None:
        return names is not None and kind is Kind.DERIVED
    return kind is Kind.FORGETTING or bool(names.added)


class _Acting:
    """What the copy of a policy that collects changes by itself: the state of the policy does not have it."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def parts(self, scratch: ScratchValues) -> Parts:
        kind: Any = type(self.policy)
        changed = self.policy.changed_by_acting()
        left_out, known = _left_out(kind), scratch.of(kind)
        held = {name: it for name, it in changed.items() if name not in left_out and not known.has(name, it, in_acting=True)}
        parts = {name: _or_cached(inner, name, kind) for name, inner in held.items()}
        named = [(f".{name}", it) for name, it in parts.items() if type(it) is not _Cached]  # what fills caches in acting
        return [("", None), *named]  # not empty, because a value without parts is left out


class _OfContext:
    """What the class of a context holds outside of the fields: what makes start values, and what its methods reach."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def parts(self) -> Parts:
        made = [(f".{it.name}.default_factory", it.default_factory) for it in dataclasses.fields(self.context)]
        return [*(it for it in made if it[1] is not dataclasses.MISSING), ("", self.context)]


class _Own:
    """What the `state_dict` of an object of the script does not have: what a class adds to an inherited one, or what the class
    with the `state_dict` leaves out.

    Args:
        thing: the object.
        kind: which of the two.
        restart: the method with which the object begins anew; None if there is none.
    """

    def __init__(self, thing: Any, kind: Kind, restart: str | None = None) -> None:
        self.thing, self.kind, self.restart = thing, kind, restart

    def parts(self, scratch: ScratchValues) -> Parts:
        of_script: Any = type(self.thing)
        names = _names_of(self.thing) or StateNames(frozenset(), None)
        known = names.saved | _left_out(of_script) | _shared_with_copies(self.thing)
        own = {} if names.added is None else data_in_class(of_script)
        held = _attributes_of(self.thing).items()
        if self.restart is not None:
            anew = restarted_by(of_script, self.restart)
            known = known | {name for name, it in held if anew.has(name, it)}
        values = scratch.of(of_script)
        own |= {name: _or_cached(inner, name, of_script) for name, inner in held if not values.has(name, inner)}
        of_forward = set_in_forward(of_script) if has_attribute(self.thing, "named_parameters") else ()
        own = {
            name: inner
            for name, inner in own.items()
            if name not in known and not (name in of_forward and is_array_or_tensor(inner))
        }
        # Copies, because the buffers of a torch module count as saved.
        for name in sorted(attribute_of(self.thing, "_non_persistent_buffers_set", ())):
            if names.added is None or name not in known:
                buffer = getattr(self.thing, name)
                own[name] = None if buffer is None else buffer.detach().clone()
        if names.added is None:
            return [*((f".{name}", inner) for name, inner in own.items()), ("", of_script)]
        is_added = self.kind is Kind.DERIVED
        wanted = [(f".{name}", inner) for name, inner in own.items() if (name in names.added) == is_added]
        return [("", None), *wanted]  # not empty, because a value without parts is left out


@functools.cache
def _left_out(kind: Any) -> frozenset[str]:
    """The attributes of a class of the script that are not looked at: those in `not_saved`, cached properties of libraries, and
    those that its code deletes, so that they are computed anew."""
    cached = cached_properties(kind)
    script = [base for base in kind.__mro__ if is_of_script(base.__module__)]
    own = {name for base in script for name in cached_properties(base) if name in vars(base)}
    codes = [
        it.__code__ for base in script for member in vars(base).values() if isinstance(it := function_of(member), FunctionType)
    ]
    deleted = {now.argval for code in codes for part in parts_of(code) for now in instructions_of(part) if _may_delete(now)}
    return listed_in_not_saved(kind) | (cached - own) | (cached & deleted)


def _may_delete(now: Any) -> bool:
    return now.opname in ("DELETE_ATTR", "LOAD_CONST") and isinstance(now.argval, str)


def _or_cached(value: Any, name: str, kind: Any) -> Any:
    """The value of an attribute, or a note that it is one of a cached property. One that advances with each use, such as a
    random generator, has changed if it is there."""
    is_moving = (isinstance(value, Iterator) and not isinstance(value, io.IOBase)) or is_random_generator(value)
    return _Cached(value) if name in cached_properties(kind) and not is_moving else value


def _attributes_of(thing: Any) -> dict[str, Any]:
    """The attributes of an object, also those in slots."""
    held = {name: inner for name, inner in attribute_of(thing, "__dict__", {}).items() if name != "__contract__"}
    return held | {name: getattr(thing, name) for name in slots_of(type(thing)) if has_attribute(thing, name)}


def _shared_with_copies(thing: Any) -> set[str]:
    """The attributes of a policy that the copy that collects has too, as the same objects: see `_Acting`."""
    held = attribute_of(thing, "__dict__", {})
    acting = thing.changed_by_acting() if hasattr(type(thing), "changed_by_acting") else {}
    return {name for name, it in acting.items() if held.get(name) is it and may_change(it)}


def _owners(used: Sequence[UsedMiddleware]) -> list[Any]:
    """Objects with a state, which is saved, and the objects that share it."""
    named = [thing for it in used if it.contract is not None for thing in it.contract.uses]
    groups = state_groups(named)
    leaders = [leader for thing in named if (leader := leader_of(thing)) is not None]
    held = [one for it in used for one in (*holders_of(it.fn), *_called_by(it))]
    owners = [one for one in (*named, *leaders, *held) if has_state(one)]
    shared = [thing for owner in owners for thing in groups.get(id(owner), (owner,))]
    return [*shared, *(it for one in shared for it in attribute_of(one, "attachments", {}).values())]  # attachments of policies


def _objects_in(without: Container[int], value: Any) -> list[Any]:
    """The objects in a value, except some by id, numbers and functions."""
    inside: Sequence[Any]
    if type(value) in (list, tuple):  # most are such, and the names that `usual_parts` makes are not needed
        inside = value[:MOST_PARTS]
    elif type(value) is dict:
        left_out = ("params",) if _is_parameter_group(value) else ()
        items = [item for item in itertools.islice(value.items(), MOST_PARTS) if item[0] not in left_out]
        inside = [one for item in items for one in item]
    elif is_task(value):  # it reaches every middleware, of which not all are saved
        return []
    elif has_attribute(value, "param_groups") and has_attribute(value, "state"):  # an optimizer, which saves no parameters
        inside = [*value.param_groups, *value.state.values()]
    elif (known := _names_in_state(value)) is not None:
        inside = [inner for name, inner in _attributes_of(value).items() if name in known]
    else:
        inside = [inner for _, inner in usual_parts(value)]
    return [it for it in inside if not (type(it) in _NO_OBJECTS or isinstance(it, type) or id(it) in without)]


def _is_parameter_group(value: dict[Any, Any]) -> bool:
    """Whether a dict is a group of parameters of an optimizer."""
    return isinstance(value.get("params"), list) and "lr" in value


def _inside(saved: Container[int], scratch: ScratchValues, value: Any) -> Parts | None:
    """The values inside a value that a run may remember; None for the usual ones."""
    if isinstance(value, (_Own, _Acting)):
        return value.parts(scratch)
    if isinstance(value, (_OfContext, _Cached)):
        return value.parts()
    if id(value) in saved or _has_graph(value):
        return ()
    if isinstance(value, (ModuleType, Context)) or is_task(value):
        return ()
    if isinstance(value, FunctionType):
        return _in_function(value) or _NAME_ALONE
    if isinstance(value, (MethodType, BuiltinFunctionType, MethodWrapperType)):
        inner = {"": attribute_of(value, "__self__"), ".__func__": attribute_of(value, "__func__")}
        return [(name, one) for name, one in inner.items() if one is not None] or _NAME_ALONE
    if isinstance(value, type):
        return _in_class(value) or _NAME_ALONE
    kind = type(value).__module__
    if is_of_script(kind):
        of_script: Any = type(value)
        left_out, known = {f".{name}" for name in _left_out(of_script)}, scratch.of(of_script)
        held = [(name, it) for name, it in usual_parts(value) if name not in left_out and not known.has(name[1:], it)]
        parts = [(name, _or_cached(it, name[1:], of_script)) for name, it in held]
        return [*parts, ("", type(value))]
    if is_data(value):
        return None
    if kind == "itertools" or kind == "_queue":
        position = position_of(value) if isinstance(value, Iterator) else "" if value.empty() else None
        return [("", next(_TOKENS) if position is None else HashedBytes(hash(position)))]
    state = _state_of(value)
    if state is not None:
        return [("", state)]
    if (concurrent := _of_concurrency(value)) is not None:
        return [("", HashedBytes(concurrent))]
    if isinstance(value, threading.local):  # what it holds for this thread
        return [("", None), *((f".{name}", it) for name, it in vars(value).items())]
    if is_of_ding_lite(kind):
        return [(name, inner) for name, inner in usual_parts(value) if has_code_of_script(inner)]
    if has_attribute(value, "cache_info"):  # of functools.lru_cache
        return [("", value.__wrapped__)]
    if kind.startswith("torch.distributions"):  # they compute attributes when these are first read
        return ()
    return None if holds_data_alone(type(value)) else ()


def _of_concurrency(value: Any) -> int | None:
    """What an object that threads share remembers: whether an event is set, the count of a semaphore, or which work was
    delegated, because the result of it comes later; None if it is none of these."""
    kind = type(value)
    if package_of(kind.__module__) not in ("threading", "asyncio", "_asyncio", "concurrent", "multiprocessing"):
        return None
    if has_attribute(kind, "is_set"):
        with contextlib.suppress(Exception):  # that of a process may be gone
            return int(value.is_set())
        return None
    if isinstance(value, threading.Semaphore):
        return int(attribute_of(value, "_value", 0))
    if has_attribute(kind, "add_done_callback") or kind.__name__ in ("AsyncResult", "MapResult"):
        return _WORK.setdefault(value, next(_TOKENS))
    return None


def _has_graph(value: Any) -> bool:
    """Whether a value is a tensor that was computed from weights, so that it belongs to one gradient step."""
    return is_array_or_tensor(value) and getattr(value, "grad_fn", None) is not None


def _in_function(fn: FunctionType) -> Parts:
    found = [(f".{name}", inner) for name, inner in closure_of(fn)]
    found += [(f".<defaults>[{index}]", inner) for index, inner in enumerate(fn.__defaults__ or ())]
    found += [(f".{name}", inner) for name, inner in (fn.__kwdefaults__ or {}).items()]
    if not is_of_script(module_of(fn)):  # only what it calls
        return [(name, inner) for name, inner in found if has_code_of_script(inner)]
    copied = attribute_of(attribute_of(fn, "__wrapped__"), "__dict__", {})  # by `functools.wraps`
    own = [name for name in vars(fn) if not name.startswith("__") and name not in copied]
    found += [(f".{attribute_of(fn, '__name__', 'function')}.{name}", vars(fn)[name]) for name in own]
    found += [(f".{name}", inner) for name, inner in globals_of(fn).items()]
    found += [(f".{name}", sys.modules[name]) for name in sorted(imports_in(fn.__code__)) if name in sys.modules]
    names = sorted(names_in(fn.__code__))
    modules = [(place, it) for place, it in found if isinstance(it, ModuleType) and is_of_script(it.__name__)]
    return found + [(f"{place}.{name}", vars(it)[name]) for place, it in modules for name in names if name in vars(it)]


def _in_class(cls: type) -> Parts:
    """The methods of a class of the script, and its attributes that can change."""
    found: list[tuple[str, Any]] = []
    for base in cls.__mro__ if is_of_script(cls.__module__) and not issubclass(cls, Enum) else ():
        for name, value in vars(base).items() if is_of_script(base.__module__) else ():
            inner = function_of(value)
            if isinstance(inner, FunctionType) or (is_data(inner) and not name.startswith("__")):
                found.append((f".{name}", inner))
    return found


def _names_in_state(value: Any) -> frozenset[str] | None:
    """The attributes that the state of an object has; None if they are unknown. Of a copy of a policy that acts, those of the
    library's classes, because no `state_dict` of the script is called for it."""
    kind: Any = value.__class__
    if hasattr(kind, "changed_by_acting") and value.is_copy:
        return frozenset(names_of([base for base in kind.__mro__ if not is_of_script(base.__module__)]))
    names = _names_of(value)
    return None if names is None else names.saved


def _state_of(value: Any) -> Any:
    """The state of an object that could be saved, but is not; None if it has none."""
    if not has_state(value):
        return None
    with contextlib.suppress(Exception):  # a warning is not worth an error
        if has_attribute(value, "state_with_values"):  # of a MetricsLogger
            return HashedBytes(hash(repr(value.state_with_values())))
        return getattr(value, "state_in_pieces", value.state_dict)()
    return None


def _reaches_script(fn: Any) -> bool:
    """Whether a middleware, or something that one of the library's functions or objects holds, is of the script."""
    if has_code_of_script(fn):
        return True
    held = closure_of(fn) if isinstance(fn, FunctionType) else attribute_of(fn, "__dict__", {}).items()
    return any(has_code_of_script(inner) for _, inner in held)
