"""Reached functions: those that a function of a script may call, by the names in its code."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ding_lite.basics.closures import closure_of, function_of, globals_of, names_in
from ding_lite.basics.origins import is_of_ding_lite, is_of_script, module_of, package_of

_MOST = 1000  # objects that are looked at
_GETTERS = (operator.attrgetter, operator.itemgetter)


def named_values(fn: FunctionType, owner: Any = None) -> Iterator[Any]:
    """The values that the code of a function names: variables in its closure, and attributes of its owner that are not of
    ding_lite's classes; if it is a user's function, also global variables, and what it names in modules of scripts. And the
    defaults of its arguments.

    Args:
        fn: the function.
        owner: the class of the method, or an object of it.
    """
    names = sorted(names_in(fn.__code__))
    yield from (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    yield from (value for name, value in closure_of(fn) if name != "__class__")  # which super() adds
    places = [] if isinstance(owner, type) else [getattr(owner, "__dict__", {})]
    places += [vars(base) for base in _kind_of(owner).__mro__ if not is_of_ding_lite(base.__module__)]
    if not is_of_ding_lite(module_of(fn)):
        variables = globals_of(fn).values()
        places += [vars(it) for it in variables if isinstance(it, ModuleType) and is_of_script(it.__name__)]
        yield from variables
    yield from (place[name] for place in places for name in names if name in place)


def reached_functions(start: Any, owner: Any = None) -> Iterator[FunctionType]:
    """A function, those in its closure, and the user's that their code names: see `named_values`. No function of another
    library, unless it is in a closure, or the class of the owner is of it too.

    Args:
        start: a function, method, property, or partial function or method.
        owner: the class of the method, or an object of it.
    """
    return (it for it in _reached(start, owner) if isinstance(it, FunctionType))


def reached_getters(start: Any, owner: Any = None) -> Iterator[Any]:
    """The objects of `operator.attrgetter` and `operator.itemgetter` that a function reaches, as in `reached_functions`."""
    return (it for it in _reached(start, owner) if isinstance(it, _GETTERS))


def _reached(start: Any, owner: Any) -> Iterator[Any]:
    tops = {package_of(module_of(it)) for it in (start, *_kind_of(owner).__mro__)} - {"ding_lite", *sys.stdlib_module_names}
    waiting, seen = [(start, True)], dict[int, Any]()  # keeps the objects, so that no other one gets the same id
    while waiting and len(seen) < _MOST:
        thing, is_held = waiting.pop()
        if id(thing) in seen:
            continue
        if isinstance(thing, _GETTERS):
            yield thing
            inside = []
        elif not isinstance(thing, FunctionType):
            inside = _functions_in(thing, tops)
        elif "__wrapped__" in vars(thing) and not (is_held and is_of_script(module_of(thing))):
            inside = [vars(thing)["__wrapped__"]]
        elif is_held or _is_of_user(thing, tops):
            yield thing
            in_closure = {id(value) for _, value in closure_of(thing)}
            waiting += [(it, id(it) in in_closure) for it in named_values(thing, owner)]
            inside = [it for it in [vars(thing).get("__wrapped__")] if it is not None]
        else:
            continue  # it may be in a closure as well
        seen[id(thing)] = thing
        waiting += [(it, is_held or (isinstance(thing, MethodType) and is_of_ding_lite(module_of(it)))) for it in inside]


def _functions_in(thing: Any, tops: set[str]) -> list[Any]:
    """What may run when this object is called or read: of methods, properties, partial functions, small containers, and
    users' classes and objects."""
    if isinstance(thing, (functools.partial, functools.partialmethod)):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, (property, staticmethod, classmethod, MethodType)):
        return [function_of(thing)]
    if isinstance(thing, functools.cached_property):
        return [thing.func]
    if isinstance(thing, functools._lru_cache_wrapper):
        return [thing.__wrapped__]
    if isinstance(thing, (list, tuple, dict)):
        return [*(thing.values() if isinstance(thing, dict) else thing)] if len(thing) <= _MOST else []
    return [it for base in _kind_of(thing).__mro__ if _is_of_user(base, tops) for it in vars(base).values()]


def _kind_of(thing: Any) -> type:
    return thing if isinstance(thing, type) else type(thing)


def _is_of_user(thing: Any, tops: set[str]) -> bool:
    """Whether a function or class is of a script, or of one of these packages."""
    module = module_of(thing)
    return not is_of_ding_lite(module) and (is_of_script(module) or package_of(module) in tops)
