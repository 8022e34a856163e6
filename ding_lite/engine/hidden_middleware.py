"""Hidden middleware: those of the library that a function without a contract calls, so that what they use is unknown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from ding_lite.basics.closures import closure_of, names_in
from ding_lite.basics.messages import name_of
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.basics.origins import is_of_ding_lite, is_of_script, module_of
from ding_lite.engine.run_parts import environments_of, has_state, holder_of
from ding_lite.pipeline.contracts import contract_of, state_groups
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.used_middleware import UsedMiddleware, middleware_of


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
    code = attribute_of(fn, "__func__", fn)
    if isinstance(code, FunctionType):
        held += [value for _, value in closure_of(code)]
        held += [*(code.__defaults__ or ()), *(code.__kwdefaults__ or {}).values()]
        if is_of_script(module_of(code)):
            held += [code.__globals__[name] for name in sorted(names_in(code.__code__)) if name in code.__globals__]
    for one in {id(it): it for it in held}.values():
        is_middleware = callable(one) and not isinstance(one, type) and contract_of(one) is not None
        if is_middleware and is_of_ding_lite(attribute_of(holder_of(one), "__module__")):
            yield one


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
