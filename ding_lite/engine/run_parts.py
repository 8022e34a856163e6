"""Run parts: the objects of a pipeline that have a state, and those whose state cannot be saved."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.basics.origins import is_of_script, module_of
from ding_lite.pipeline.contracts import leader_of, state_groups
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.used_middleware import middleware_of


def parts_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """Each object of a pipeline with `state_dict` and `load_state_dict`, by name: middleware, and objects in `uses`.

    The name of an object is that of its class, or its `state_name`, where objects of several classes have one kind of state. Of
    objects that share their state, such as a policy and its learn_mode, only the owner is listed.
    """
    used = middleware_of(entries)
    things = [thing for it in used if it.contract is not None for thing in it.contract.uses]
    owners = state_groups(things)
    found: dict[int, tuple[str, Any]] = {}
    for it in used:
        for thing in () if it.contract is None else it.contract.uses:
            leader = leader_of(thing)
            for one in (thing,) if leader is None else (leader, thing):
                owner = owners.get(id(one), (one,))[0]
                if has_state(owner):
                    found.setdefault(id(owner), (attribute_of(owner, "state_name", type(owner).__name__), owner))
        for held in holders_of(it.fn):
            if has_state(held):
                found.setdefault(id(held), (it.name, held))
    counts: dict[str, int] = {}
    parts = {}
    for name, thing in found.values():
        counts[name] = number = counts.get(name, 0) + 1
        parts[name if number == 1 else f"{name} {number}"] = thing
    return parts


def used_objects(entries: Sequence[Entry]) -> list[tuple[str, Any]]:
    """(stage, object) for each object that the contracts of a pipeline name in `uses`; the stage is empty if none is named."""
    used = [it.contract for it in middleware_of(entries) if it.contract is not None]
    return [(terms.stage or "", thing) for terms in used for thing in terms.uses]


def may_use_anything(entries: Sequence[Entry]) -> bool:
    """Whether a middleware of a pipeline has no contract, so that nothing is known of the objects that it uses."""
    return any(it.contract is None and not it.is_around for it in middleware_of(entries))


def holder_of(fn: Any) -> Any:
    """What holds the state of a middleware: the object of a bound method, else the middleware itself. If a decorator has no
    state of its own, that of what it decorates."""
    while isinstance(fn, FunctionType) and "__wrapped__" in vars(fn):
        wrapped = vars(fn)["__wrapped__"]
        own = vars(fn).get("state_dict")
        if own is not None and own is not attribute_of(wrapped, "__dict__", {}).get("state_dict"):  # not copied from there
            break
        fn = wrapped
    return attribute_of(fn, "__self__", fn)


def holders_of(fn: Any) -> list[Any]:
    """What holds states of a middleware: decorators with a state of their own, and what they decorate."""
    found = [holder_of(fn)]
    while isinstance(found[-1], FunctionType) and "__wrapped__" in vars(found[-1]):
        found.append(holder_of(vars(found[-1])["__wrapped__"]))
    return found


def has_state_itself(fn: Any) -> bool:
    """Whether a middleware can be saved and restored, and not only what it decorates."""
    holder = holder_of(fn)
    return holder is attribute_of(fn, "__self__", fn) and has_state(holder)


def network_holder(part: Any) -> Any:
    """The object that has the networks and the configuration of an object in its attributes: of a mode, its policy."""
    return attribute_of(part, "network_holder", part)


def environments_of(entries: Sequence[Entry]) -> list[Any]:
    """The environments of a pipeline: the objects in the `exclusive` of contracts."""
    things = [thing for it in middleware_of(entries) if it.contract is not None for thing in it.contract.exclusive]
    return list({id(thing): thing for thing in things}.values())


def environments_without_state(entries: Sequence[Entry]) -> list[str]:
    """The environments of a pipeline that cannot be saved, by the name of their class."""
    return [type(thing).__name__ for thing in environments_of(entries) if not has_state(thing)]


def has_state(thing: Any) -> bool:
    """Whether an object can be saved and restored."""
    is_class = isinstance(thing, type)
    return not is_class and callable(attribute_of(thing, "state_dict")) and callable(attribute_of(thing, "load_state_dict"))


def has_code_of_script(value: Any) -> bool:
    """Whether it is a function, a method or an object of a class of the script."""
    if isinstance(value, functools.partial):
        return has_code_of_script(value.func)
    owner = value if isinstance(value, FunctionType) else type(attribute_of(value, "__self__", value))
    return is_of_script(module_of(owner))
