"""Restarted values: what a method such as `reset` of an environment sets anew, so that it is no memory."""

from __future__ import annotations

import functools
import itertools
from types import FunctionType
from typing import Any, NamedTuple

from ding_lite.basics.attribute_reads import instructions_of
from ding_lite.basics.closures import function_of, parts_of
from ding_lite.basics.first_accesses import FirstAccesses
from ding_lite.basics.origins import is_of_script, module_of, without_library_decorators
from ding_lite.basics.reached_functions import reached_functions
from ding_lite.engine.scratch_values import can_be_renewed
from ding_lite.engine.state_names import takes_all
from ding_lite.pipeline.value_kinds import is_random_generator

_COPIES = ("COPY", "DUP_TOP")
_LOADS = ("LOAD_ATTR", "LOAD_METHOD")


class Restarted(NamedTuple):
    """What a method of a class of the script sets."""

    values: frozenset[str]
    """The attributes that it always sets or fills anew, before it reads them; and those that code only adds up, as a counter
    that nothing reads."""
    renewed: frozenset[str]
    """Those of which only the content is replaced, `self.items.clear()`."""
    stored: frozenset[str]
    """The attributes that it sets in any way, such as a random generator if it gets a seed."""

    def has(self, name: str, value: Any) -> bool:
        """Whether an attribute with this value begins anew."""
        if name in self.stored and is_random_generator(value):
            return True
        return name in self.values and (name not in self.renewed or can_be_renewed(value))


@functools.cache
def restarted_by(kind: Any, method: str) -> Restarted:
    """What this method of a class of the script sets anew."""
    first = FirstAccesses(kind)
    start = getattr(kind, method, None)
    if start is None or not first.is_known:
        return Restarted(frozenset(), frozenset(), frozenset())
    found = first.of(method)
    codes = [part for fn in reached_functions(start, kind) if is_of_script(module_of(fn)) for part in parts_of(fn.__code__)]
    stored = {it.argval for code in codes for it in instructions_of(code) if it.opname == "STORE_ATTR"}
    return Restarted((found.set - found.read) | _only_added_up(kind), frozenset(first.names_renewed), frozenset(stored))


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
