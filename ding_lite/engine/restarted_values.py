"""Restarted values: what a method such as `reset` of an environment sets anew, so that it is no memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ding_lite.basics.attribute_reads import instructions_of
from ding_lite.basics.closures import function_of, parts_of
from ding_lite.basics.first_accesses import FirstAccesses
from ding_lite.basics.origins import is_of_script, module_of, without_library_decorators
from ding_lite.basics.reached_functions import reached_functions
from ding_lite.engine.state_names import takes_all

_COPIES = ("COPY", "DUP_TOP")
_LOADS = ("LOAD_ATTR", "LOAD_METHOD")
_FILLING = ("fill", "clear")
_WHOLE = (slice(None), Ellipsis)


class Restarted(NamedTuple):
    """What a method of a class of the script sets."""

    values: frozenset[str]
    """The attributes that it always sets, before it reads them, or fills anew; and those that code only adds up, as a counter
    that nothing reads."""
    stored: frozenset[str]
    """The attributes that it sets in any way, such as a random generator if it gets a seed."""


@functools.cache
def restarted_by(kind: Any, method: str) -> Restarted:
    """What this method of a class of the script sets anew."""
    first = FirstAccesses(kind)
    start = getattr(kind, method, None)
    if start is None or not first.is_known:
        return Restarted(frozenset(), frozenset())
    found = first.of(method)
    codes = [part for fn in reached_functions(start, kind) if is_of_script(module_of(fn)) for part in parts_of(fn.__code__)]
    filled = {name for code in codes for name in _filled(code)}
    stored = {it.argval for code in codes for it in instructions_of(code) if it.opname == "STORE_ATTR"}
    return Restarted(frozenset((found.set - found.read) | filled | _only_added_up(kind)), frozenset(stored))


def _filled(code: CodeType) -> Iterator[str]:
    """The attributes whose whole content code sets in place: `self.board[:] = 0`, `self.items.clear()`."""
    found = instructions_of(code)
    for index, now in enumerate(found[:-1]):
        if now.opname not in _LOADS:
            continue
        following = found[index + 1 : index + 5]
        if following[0].opname in _LOADS and following[0].argval in _FILLING:
            yield now.argval
            continue
        names = [it.opname for it in following]
        end = next((place for place, name in enumerate(names) if name in ("STORE_SUBSCR", "STORE_SLICE")), None)
        inside = following[:end]
        if end is not None and all(it.opname == "BUILD_SLICE" or _is_whole(it) for it in inside):
            yield now.argval


def _is_whole(now: Any) -> bool:
    return now.opname == "LOAD_CONST" and (now.argval is None or now.argval in _WHOLE)


def _only_added_up(kind: Any) -> frozenset[str]:
    """The attributes that the methods of a class only add to, as in `self.count += 1`, and never read."""
    script = [base for base in kind.__mro__ if is_of_script(base.__module__)]
    members = [without_library_decorators(function_of(it)) for base in script for it in vars(base).values()]
    functions = [it for it in members if isinstance(it, FunctionType)]
    if any(takes_all(fn) for fn in functions):
        return frozenset()
    added, read = set[str](), set[str]()
    for code in (part for fn in functions for part in parts_of(fn.__code__)):
        found = instructions_of(code)
        read |= {it.argval for it in found if it.opname == "LOAD_CONST" and isinstance(it.argval, str)}  # getattr
        for before, now in itertools.pairwise(found):
            if now.opname in _LOADS:
                (added if before.opname in _COPIES else read).add(now.argval)
    return frozenset(added - read)
