"""Hidden middleware: those of the library that a function of the script calls, so that the task does not know of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from ding_lite.basics.attribute_reads import instructions_of, place_at
from ding_lite.basics.closures import closure_of, function_of, globals_of, names_in, parts_of
from ding_lite.basics.messages import call_of, name_of
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.basics.origins import is_of_ding_lite, is_of_script, module_of
from ding_lite.basics.reached_functions import reached_functions
from ding_lite.engine.run_parts import environments_of, has_code_of_script, has_state, holder_of, holders_of
from ding_lite.pipeline.contracts import contract_of, state_groups
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.generators import method_of
from ding_lite.pipeline.used_middleware import UsedMiddleware, middleware_of

_BUILDING = frozenset({"end_run", "use"})
"""Names in code that ends a middleware itself, or passes it to another task."""

_LOOKING = frozenset({"repr", "str", "print", "type", "id", "len", "bool", "callable", "isinstance", "hasattr"})
"""Functions that do not call what they get."""


class Hidden(NamedTuple):
    """A middleware of the library inside of a function without a contract."""

    hidden: Any
    warning: str


def hidden_middleware(pipeline: Sequence[Entry], saved: Sequence[Any]) -> list[Hidden]:
    """Those of which something is not saved with the run, because nothing else in the pipeline names it.

    Args:
        pipeline: the middleware.
        saved: the objects that are saved with the run.
    """
    known = [*saved, *environments_of(pipeline)]
    found = []
    for used in middleware_of(pipeline):
        if used.contract is None and not used.is_around:
            found += [Hidden(one, _warning(used, one, lost)) for one in _inside(used.fn) if (lost := _lost(one, known))]
    return found


def _inside(fn: Any) -> Iterator[Any]:
    """The middleware of the library that a function or object of the script names or holds."""
    fn = attribute_of(fn, "func", fn)
    held: list[Any] = [attribute_of(fn, "__self__"), *attribute_of(attribute_of(fn, "__self__", fn), "__dict__", {}).values()]
    code = _code_of(fn)
    if isinstance(code, FunctionType):
        held += [value for _, value in closure_of(code)]
        held += [*(code.__defaults__ or ()), *(code.__kwdefaults__ or {}).values()]
        if is_of_script(module_of(code)):
            held += globals_of(code).values()
    yield from (one for one in {id(it): it for it in held}.values() if _is_of_library(one))


def _code_of(fn: Any) -> Any:
    """The function of a function, a method or an object that can be called."""
    is_function = isinstance(fn, (FunctionType, MethodType))
    return attribute_of(fn, "__func__", fn) if is_function else function_of(call_of(fn))


def _is_of_library(one: Any) -> bool:
    is_middleware = callable(one) and not isinstance(one, type) and contract_of(one) is not None
    return is_middleware and is_of_ding_lite(attribute_of(holder_of(one), "__module__"))


def unended_middleware(pipeline: Sequence[Entry]) -> Iterator[str]:
    """A warning for each middleware of the library with `end_run` that only code of the script calls: the task calls neither
    its `begin_run` nor its `end_run`, without which a saver of data writes nothing.

    One that the script also passes to `task.use`, or whose `end_run` its code names, is not named.
    """
    all_used = middleware_of(pipeline)
    known = {id(held) for used in all_used for held in holders_of(used.fn)}
    for used in all_used:
        if used.is_around or not has_code_of_script(used.fn):
            continue
        end = attribute_of(method_of(used.fn, "end_run"), "__self__")  # that of a middleware to which an object forwards
        for one in _called_in(used.fn):
            if id(holder_of(one)) not in known and end is not holder_of(one) and method_of(one, "end_run") is not None:
                known.add(id(holder_of(one)))
                yield (
                    f"{used.name}{used.at} calls {name_of(one)}, a middleware of the library, so the task does not know of it, "
                    "and calls neither its begin_run nor its end_run: what it does before the first iteration and after the "
                    "last one is left out, such as opening and writing its files, or a last evaluation. Pass the middleware to "
                    "task.use itself, without a function around it; or, to run code before and after it, or only in some "
                    "iterations, write a decorator with functools.wraps, which keeps these methods: see "
                    '"A decorator with functools.wraps" in docs/guide.md.'
                )


def _called_in(fn: Any) -> Iterator[Any]:
    """The middleware of the library that a function or object of the script, or functions that it names, may call; none if
    their code calls `end_run` itself, or builds pipelines."""
    given = (*fn.args, *fn.keywords.values()) if isinstance(fn, functools.partial) else ()
    fn = attribute_of(fn, "func", fn)
    owner = attribute_of(fn, "__self__", None if isinstance(fn, FunctionType) else fn)
    code, end = _code_of(fn), function_of(getattr(type(owner), "end_run", None))
    reached = {it: None for start in (code, end) if start is not None for it in reached_functions(start, owner)}
    functions = [it for it in reached if is_of_script(module_of(it))]
    if any(not _BUILDING.isdisjoint(names_in(it.__code__)) for it in functions):
        return
    yield from (it for value in given for it in _middleware_in(value))
    for one in functions:
        yield from (it for name, value in _named_in(one, owner) if _may_call(one, name) for it in _middleware_in(value))


def _named_in(fn: FunctionType, owner: Any) -> Iterator[tuple[str, Any]]:
    """The values that a function names, with their names: variables, defaults of arguments, and attributes of its object."""
    code, own = fn.__code__, attribute_of(owner, "__dict__", {})
    yield from closure_of(fn)
    defaults = fn.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults)
    yield from (fn.__kwdefaults__ or {}).items()
    yield from globals_of(fn).items()
    yield from ((name, own[name]) for name in sorted(names_in(code)) if name in own)


def _may_call(fn: FunctionType, name: str) -> bool:
    """Whether a function does more with a variable or attribute than to read attributes of it, print it or compare it with
    None."""
    for found in map(instructions_of, parts_of(fn.__code__)):
        for index, now in enumerate(found):
            if now.argval == name and now.opname.startswith("LOAD_") and now.opname not in ("LOAD_CONST", "LOAD_CLOSURE"):
                place, after = place_at(found, index), [it.opname for it in found[index + 1 : index + 3]]
                is_test = after[0].startswith("POP_JUMP") or after == ["LOAD_CONST", "IS_OP"] if after else False
                is_read = bool(place.chain) and place.chain[0] != "__call__"
                if not is_test and not is_read and place.function not in _LOOKING:
                    return True
    return False


def _middleware_in(value: Any) -> list[Any]:
    """The middleware of the library that a value is, or that a list, tuple or dict holds."""
    inside = [*value.values()] if type(value) is dict else [*value] if type(value) in (list, tuple) else [value]
    return [one for one in inside if _is_of_library(one)]


def _lost(hidden: Any, known: Sequence[Any]) -> list[str]:
    """The objects of a middleware that are not saved with the run, by the name of their class."""
    terms = contract_of(hidden)
    own = [] if _has_empty_state(holder_of(hidden)) else [holder_of(hidden)]
    things = [*own, *(() if terms is None else (*terms.uses, *terms.exclusive))]
    groups, saved = state_groups([*known, *things]), {id(it) for it in known}
    lost = [
        it
        for it in things
        if (has_state(it) or (terms is not None and any(it is env for env in terms.exclusive)))
        and saved.isdisjoint(id(one) for one in (it, *groups.get(id(it), ())))
    ]
    return list(dict.fromkeys(type(it).__name__ for it in lost))


def _has_empty_state(thing: Any) -> bool:
    """Whether an object has a state without anything in it, such as that of a learner with one buffer."""
    with contextlib.suppress(Exception):  # a warning is not worth an error
        return all(it is None or (isinstance(it, (list, tuple, dict)) and not it) for it in thing.state_dict().values())
    return False


def _warning(used: UsedMiddleware, hidden: Any, lost: Sequence[str]) -> str:
    return (
        f"{used.name}{used.at} calls {name_of(hidden)}, a middleware of the library, but has no contract, so that what "
        f"it uses is unknown. Not saved with the run: {', '.join(lost)}. So a resumed run goes on with other data. Pass "
        "the middleware to task.use itself, without a function around it; or, to run code before and after it, write a "
        'decorator with functools.wraps, which keeps its contract: see "A decorator with functools.wraps" in docs/guide.md.'
    )
