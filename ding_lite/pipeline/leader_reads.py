"""Leader reads: contracts of middleware that call a method of a policy's mode which reads the policy itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

from ding_lite.basics.closures import names_in
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.basics.origins import is_of_ding_lite, module_of
from ding_lite.basics.reached_functions import reached_functions
from ding_lite.pipeline.contracts import Contract, contract_of, names_object

_NONE: tuple[str, ...] = ()


def with_leaders(fn: Callable[..., Any], terms: Contract) -> Contract:
    """The contract, which also names the leader of each object in it of which the middleware calls such a method.

    A class says which methods these are, in `reads_leader_in`. Without the leader in the contract, nothing would order such a
    call and the middleware that changes the leader.
    """
    followers = [thing for thing in terms.uses if getattr(type(thing), "reads_leader_in", _NONE)]
    leaders = [thing for thing in followers if not names_object(thing.leader, terms)]
    if not leaders:
        return terms
    called = set(_names_of(fn))
    added = [thing.leader for thing in leaders if called.intersection(type(thing).reads_leader_in)]
    return dataclasses.replace(terms, uses=(*terms.uses, *added)) if added else terms


def _names_of(fn: Any) -> Iterator[str]:
    """The names of attributes and global variables in a middleware of a script, and in the functions that it reaches; and the
    names of ding_lite's functions that it holds, such as a bound method."""
    is_function = isinstance(fn, (FunctionType, MethodType, functools.partial))
    for it in reached_functions(fn if is_function else type(fn).__call__, attribute_of(fn, "__self__", fn)):
        yield from [it.__name__] if is_of_ding_lite(module_of(it)) else names_in(it.__code__)
    held = [] if is_function else [*attribute_of(fn, "__dict__", {}).values()]
    for part in [it for one in held for it in (one if type(one) in (list, tuple) else [one])]:  # of several middleware as one
        if callable(part) and contract_of(part) is not None:
            yield from _names_of(part)
