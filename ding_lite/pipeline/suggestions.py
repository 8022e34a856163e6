"""Suggestions: the contract to write for a function without one, from what it was seen to touch.

Room: ding_lite.pipeline, floor 0. Imports basics; otherwise the standard library.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from ding_lite.basics.configs import Config
from ding_lite.pipeline.checks import Entry
from ding_lite.pipeline.contexts import is_scalar
from ding_lite.pipeline.contracts import Contract

_NO_STATE = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type, Config, Contract)


@dataclasses.dataclass
class _Seen:
    """What one function touched, in the order in which it did."""

    fn: Callable[..., Any]
    name: str
    location: str
    terms: dict[str, list[str]]


class Touches:
    """What the functions without a contract were seen to touch, in the checked iterations of all runs of a task."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def recorder(self, fn: Callable[..., Any], name: str, location: str, is_second: bool) -> Callable[[str, str], None]:
        """What to call with "read" or "write" and a field when this half of the function touches it."""
        suffix = "_after" if is_second else ""
        seen = self._seen.setdefault(id(fn), _Seen(fn, name, location, {}))

        def note(verb: str, field: str) -> None:
            names = seen.terms.setdefault(f"{verb}s{suffix}", [])
            if field not in names and field not in seen.terms.get(f"{verb}s", ()):
                names.append(field)

        return note

    def suggest(self, pipeline: Sequence[Entry]) -> str:
        """For each function without a contract its place, and the decorator to paste above it.

        Args:
            pipeline: says which stage is likely: that of the middleware before it.
        """
        parts = [f"{seen.name} ({seen.location}):\n    {_decorator(seen, pipeline)}" for seen in self._seen.values()]
        return "\n".join(parts)

    def __len__(self) -> int:
        return len(self._seen)


def _decorator(seen: _Seen, pipeline: Sequence[Entry]) -> str:
    terms = [f"{term}={_listed(repr(name) for name in names)}" for term, names in sorted(seen.terms.items()) if names]
    objects = [name for name, _ in objects_held(seen.fn)]
    if objects:
        terms.append(f"uses={_listed(objects)}")
    terms.append(f"stage={_likely_stage(seen.fn, pipeline)!r}")
    call = f"contract({', '.join(terms)})"
    return f"@{call}" if inspect.isfunction(seen.fn) else f"{call}(self)  # last in __init__"


def _listed(names: Any) -> str:
    found = [str(name).replace("'", '"') for name in names]
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})"


def objects_held(fn: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """What a middleware holds that has a state of its own, by name: free variables and globals, or attributes of an object."""
    if inspect.isfunction(fn):
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:  # not set yet
                continue
            if _has_state(value):
                yield name, value
        for name in fn.__code__.co_names:
            if name in fn.__globals__ and _has_state(fn.__globals__[name]):
                yield name, fn.__globals__[name]
    else:
        yield from ((f"self.{name}", value) for name, value in getattr(fn, "__dict__", {}).items() if _has_state(value))


def unnamed_objects(pipeline: Sequence[Entry]) -> Iterator[str]:
    """What to add for each middleware that holds an object which the contract of one on another lane names, and its own not."""
    for entry in pipeline:
        terms = entry.contract
        for name, thing in objects_held(entry.fn) if terms is not None else ():
            if terms is None or _is_named(thing, terms):
                continue
            for other in pipeline:
                theirs = other.contract
                if theirs is None or theirs.lane == terms.lane:
                    continue
                if any(it is thing for it in theirs.uses):
                    yield (
                        f"{entry.name} ({entry.location}) holds {name}, a {type(thing).__name__} that {other.name} uses, "
                        f"and its contract does not name it. Nothing orders the two, so if it is touched add it: "
                        f"@contract(..., uses=({name},))."
                    )
                    break


def _is_named(thing: Any, terms: Contract) -> bool:
    """Whether a contract names the object, or the one whose state it follows."""
    leader = getattr(thing, "leader", None)
    return any(it is thing or (leader is not None and it is leader) for it in terms.uses)


def _has_state(value: object) -> bool:
    if is_scalar(value) or isinstance(value, _NO_STATE) or _is_task(value):
        return False
    return isinstance(value, (list, dict, set)) or hasattr(value, "__dict__") or hasattr(value, "__array__")


def _is_task(value: object) -> bool:
    return all(hasattr(value, name) for name in ("use", "run", "finish"))


def _likely_stage(fn: Callable[..., Any], pipeline: Sequence[Entry]) -> str:
    stage = "record"
    for entry in pipeline:
        if entry.fn is fn:
            break
        if entry.contract is not None and entry.contract.stage:
            stage = entry.contract.stage
    return {"evaluate": "explore", "explore": "explore", "collect": "process"}.get(stage, stage)
