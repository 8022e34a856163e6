"""Run parts: the objects of a pipeline that have a state, and those whose state cannot be saved."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import CellType
from typing import Any

from ding_lite.pipeline.contracts import state_groups
from ding_lite.pipeline.fingerprints import Print, fingerprint
from ding_lite.pipeline.pipeline_checks import Entry
from ding_lite.pipeline.used_middleware import middleware_of

_EMPTY = CellType()


def parts_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """Each object of a pipeline with `state_dict` and `load_state_dict`, by name: middleware, and objects in `uses`.

    Of objects that share their state, such as a policy and its learn_mode, only the owner is listed.
    """
    used = middleware_of(entries)
    things = [thing for it in used if it.terms is not None for thing in it.terms.uses]
    owners = state_groups(things)
    found: dict[int, tuple[str, Any]] = {}
    for it in used:
        for thing in () if it.terms is None else it.terms.uses:
            leader = getattr(thing, "leader", None)
            for one in (thing,) if leader is None else (leader, thing):
                owner = owners.get(id(one), (one,))[0]
                if _has_state(owner):
                    found.setdefault(id(owner), (type(owner).__name__, owner))
        if _has_state(it.fn):
            found.setdefault(id(it.fn), (it.name, it.fn))
    counts: dict[str, int] = {}
    parts = {}
    for name, thing in found.values():
        counts[name] = number = counts.get(name, 0) + 1
        parts[name if number == 1 else f"{name} {number}"] = thing
    return parts


def environments_of(entries: Sequence[Entry]) -> list[Any]:
    """The environments of a pipeline: the objects in the `alone` of contracts."""
    things = [thing for it in middleware_of(entries) if it.terms is not None for thing in it.terms.alone]
    return list({id(thing): thing for thing in things}.values())


def environments_without_state(entries: Sequence[Entry]) -> list[str]:
    """The environments of a pipeline that cannot be saved, by the name of their class."""
    return [type(thing).__name__ for thing in environments_of(entries) if not _has_state(thing)]


def memories_of(entries: Sequence[Entry]) -> dict[str, Print]:
    """Fingerprints of what middleware of the script without a state hold: attributes, or closures and defaults.

    Objects that a contract names are left out, because they are saved.
    """
    named = [thing for it in middleware_of(entries) if it.terms is not None for thing in it.terms.uses]
    groups = state_groups(named)
    saved = {id(thing) for one in named for thing in groups.get(id(one), (one,))}
    found = {}
    for it in middleware_of(entries):
        fn = inspect.unwrap(it.fn)
        if _has_state(it.fn) or it.is_around or str(getattr(fn, "__module__", "")).startswith("ding_lite"):
            continue
        if inspect.isfunction(fn):
            cells = zip(fn.__code__.co_freevars, fn.__closure__ or ())
            held = {name: cell.cell_contents for name, cell in cells if cell != _EMPTY}
            held["defaults"] = fn.__defaults__
        else:
            held = dict(vars(fn)) if hasattr(fn, "__dict__") else {}
        held = {name: value for name, value in held.items() if name != "__contract__" and id(value) not in saved}
        found[it.name] = fingerprint(held, data_alone=True)
    return found


def _has_state(thing: Any) -> bool:
    is_class = isinstance(thing, type)
    return not is_class and callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
