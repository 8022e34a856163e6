"""Leader reads: contracts of middleware that call a method of a policy's mode which reads the policy itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from ding_lite.basics.closures import closure_of, names_in
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.pipeline.contracts import Contract, contract_of

_MOST = 200  # functions that are looked at
_NONE: tuple[str, ...] = ()


def with_leaders(fn: Callable[..., Any], terms: Contract) -> Contract:
    """The contract, which also names the leader of each object in it of which the middleware calls such a method.

    A class says which methods these are, in `reads_leader_in`. Without the leader in the contract, nothing would order such a
    call and the middleware that changes the leader.
    """
    followers = [thing for thing in terms.uses if getattr(type(thing), "reads_leader_in", _NONE)]
    leaders = [thing for thing in followers if not any(use is thing.leader for use in terms.uses)]
    if not leaders:
        return terms
    called = set(_names_of(fn))
    added = [thing.leader for thing in leaders if called.intersection(type(thing).reads_leader_in)]
    return dataclasses.replace(terms, uses=(*terms.uses, *added)) if added else terms


def _names_of(fn: Any) -> Iterator[str]:
    """The names of attributes and global variables in a middleware of a script, and in the functions that it calls."""
    waiting: list[Any] = [fn]
    seen: set[FunctionType] = set()
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        one = getattr(one, "__func__", getattr(one, "func", one))  # of a method, or a partial function
        if isinstance(one, FunctionType):
            if one in seen or is_of_ding_lite(one.__module__):
                continue
            seen.add(one)
            names = names_in(one.__code__)
            yield from names
            waiting += [value for _, value in closure_of(one) if callable(value)]
            waiting += [one.__globals__[name] for name in names if isinstance(one.__globals__.get(name), FunctionType)]
        elif not isinstance(one, type):  # an object with __call__, or several middleware as one
            waiting += [it for base in type(one).__mro__ for it in vars(base).values() if isinstance(it, FunctionType)]
            held = [
                it
                for part in getattr(one, "__dict__", {}).values()
                for it in (part if type(part) in (list, tuple) else (part,))
            ]
            waiting += [it for it in held if callable(it) and contract_of(it) is not None]
