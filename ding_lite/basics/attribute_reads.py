"""Attribute reads: which attributes code reads and sets, and whether it does anything else with a variable."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ding_lite.basics.closures import function_of, parts_of

_NOTHING = ("PUSH_NULL", "CACHE", "PRECALL", "RESUME", "NOP", "EXTENDED_ARG")
_DEFINING = ("COPY_FREE_VARS", "MAKE_CELL", "LOAD_CLOSURE")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_CALLS = ("CALL", "CALL_FUNCTION")
_VALUES = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CONST")
_FUNCTIONS = ("LOAD_DEREF", "LOAD_GLOBAL")


class Place(NamedTuple):
    """One place in code that uses a variable or attribute. Without chain and function, it is used in another way."""

    chain: tuple[str, ...] = ()
    """The attributes that are read of it, one of the other: ("cfg", "seed") for `policy.cfg.seed`, and ("cfg", "=") where an
    attribute or item of policy.cfg is set or deleted."""
    function: str = ""
    """The function that gets it as an argument, by its name; empty if none does."""
    position: int = 0
    """Position of this argument."""


@functools.lru_cache(maxsize=16_384)  # each run of a pipeline asks the same
def places_of(code: CodeType, name: str, is_attribute: bool = False) -> tuple[Place, ...]:
    """Each place in a function, and in those inside it, that uses a variable.

    Args:
        code: code of the function.
        name: name of the variable: an argument, a global one, or one of a function around it.
        is_attribute: whether it is the name of an attribute instead, of any object.
    """
    return tuple(_places_in(code, name, is_attribute))


def _places_in(code: CodeType, name: str, is_attribute: bool) -> Iterator[Place]:
    is_there = any(name in names for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    found = instructions_of(code) if is_there else ()
    for index, now in enumerate(found):
        names = now.argval if isinstance(now.argval, tuple) else (now.argval,)
        if name not in names or now.opname in (*_DEFINING, "LOAD_CONST", "KW_NAMES"):
            continue
        if (now.opname.endswith(("_ATTR", "_METHOD", "_ATTRIBUTE"))) != is_attribute:
            continue
        yield Place() if isinstance(now.argval, tuple) else place_at(found, index)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from places_of(constant, name, is_attribute)


@functools.lru_cache(maxsize=256)
def instructions_of(code: CodeType) -> tuple[dis.Instruction, ...]:
    """The instructions of a function that do something, without those of functions inside it."""
    return tuple(it for it in dis.get_instructions(code) if it.opname not in _NOTHING)


def is_method_load(now: dis.Instruction) -> bool:
    """Whether an instruction loads an attribute to call it: from Python 3.12 on, a bit of the argument tells."""
    return now.opname == "LOAD_METHOD" or (sys.version_info >= (3, 12) and bool((now.arg or 0) & 1))


def attributes_read(code: CodeType, name: str) -> set[str] | None:
    """The attributes of a variable that a function and those inside it read; None if the variable itself goes elsewhere, such
    as to another function.

    Args:
        code: code of the function.
        name: name of the variable: an argument, a global one, or one of a function around it.

    Example:
        >>> def fn(x, y):
        ...     return x.shape[0] + x.sum() + len(y)
        >>> sorted(attributes_read(fn.__code__, "x")), attributes_read(fn.__code__, "y")
        (['shape', 'sum'], None)
    """
    found: set[str] = set()
    for place in places_of(code, name):
        if not place.chain:
            return None
        found.add(place.chain[0])
    return found


def attributes_set(function: Any) -> Iterator[str]:
    """The attributes, of any object, that a function, those inside it and those that it wraps set; of anything else, none."""
    while isinstance(function, FunctionType):
        for code in parts_of(function.__code__):
            yield from (it.argval for it in instructions_of(code) if it.opname == "STORE_ATTR")
            if "setattr" in code.co_names:
                yield from _set_by_name(instructions_of(code))
        function = vars(function).get("__wrapped__")


def _set_by_name(code: Sequence[dis.Instruction]) -> Iterator[str]:
    """The attributes that `setattr(self, "name", value)` sets."""
    for index, now in enumerate(code):
        if now.argval == "setattr" and now.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            words = [it.argval for it in code[index + 1 : index + 5] if it.opname == "LOAD_CONST"]
            yield from [word for word in words[:1] if isinstance(word, str)]


def names_of(classes: Sequence[type]) -> set[str]:
    """The attributes that these classes define, declare or set."""
    members = [member for one in classes for member in vars(one).items()]
    stored = {name for _, it in members for name in attributes_set(function_of(it))}
    declared = {name for one in classes for name in vars(one).get("__annotations__", ())}
    return {*(name for name, _ in members), *declared, *stored}


@functools.cache
def names_not_saved(kind: Any) -> frozenset[str]:
    """The attributes that a class of the script lists in `not_saved`, and its cached properties."""
    return listed_in_not_saved(kind) | cached_properties(kind)


@functools.cache
def listed_in_not_saved(kind: Any) -> frozenset[str]:
    """The attributes that a class of the script lists in `not_saved`; a string is one name."""
    listed = [vars(base)["not_saved"] for base in kind.__mro__ if "not_saved" in vars(base)]
    listed = [(names,) if isinstance(names, str) else names for names in listed]
    return frozenset(name for names in listed if isinstance(names, (tuple, list, set, frozenset)) for name in names)


@functools.cache
def cached_properties(kind: Any) -> frozenset[str]:
    """The attributes of a class that `functools.cached_property` computes when they are first read."""
    members = [member for base in kind.__mro__ for member in vars(base).items()]
    return frozenset(name for name, member in members if isinstance(member, functools.cached_property))


def place_at(code: Sequence[dis.Instruction], index: int) -> Place:
    """What happens to the value that the instruction at this index loads."""
    end = _after_attributes(code, index)
    chain = tuple(str(it.argval) for it in code[index + 1 : end])
    if chain:
        is_set = end < len(code) and code[end].opname in ("STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR")
        return Place((*chain, "=") if is_set else chain)
    begin = index
    while code[begin].opname in _ATTRIBUTE:  # an attribute: the object comes before
        begin -= 1
    later = 0
    while end < len(code) and code[end].opname in _VALUES:
        end, later = _after_attributes(code, end), later + 1
    count = code[end].arg if end < len(code) and code[end].opname in _CALLS else None
    if count is None:
        return Place()
    position = count - 1 - later
    for _ in range(position):
        begin -= 1
        while code[begin].opname in _ATTRIBUTE:
            begin -= 1
        if begin <= 0 or code[begin].opname not in _VALUES:
            return Place()
    if position < 0 or begin < 1 or code[begin - 1].opname not in _FUNCTIONS:
        return Place()
    return Place((), code[begin - 1].argval, position)


def _after_attributes(code: Sequence[dis.Instruction], index: int) -> int:
    index += 1
    while index < len(code) and code[index].opname in _ATTRIBUTE:
        index += 1
    return index
