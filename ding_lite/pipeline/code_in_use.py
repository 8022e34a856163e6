"""Code in use: the script's code that runs where a middleware uses an object, such as the hooks of a policy of the library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from ding_lite.basics.closures import function_of
from ding_lite.basics.config_classes import Config
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.basics.origins import is_of_ding_lite, is_of_script, module_of
from ding_lite.basics.reached_functions import reached_functions
from ding_lite.pipeline.contracts import LANES, Contract
from ding_lite.pipeline.entries import Entry, take_turns

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__", "__init_subclass__")
_INNER_ENVS = ("env", "envs", "_env", "_envs")
_UNKNOWN = "it"
_ORDER = {lane: index for index, lane in enumerate(LANES)}
_MOST = 100  # environments and wrappers that are looked at


class CodeInUse(NamedTuple):
    """Functions of the script that run where a middleware uses an object."""

    used: Any
    """The object that the contract names."""
    owner: Any
    """The object whose methods they are: a policy, a network of it, an environment."""
    functions: tuple[FunctionType, ...]
    lanes: frozenset[str]
    """The lanes that use the object, if it is unknown which of them runs which function; else empty."""

    @property
    def shown(self) -> str:
        """Code for the object in messages."""
        return str(attribute_of(self.used, "usual_name", _UNKNOWN))

    @property
    def kind(self) -> str:
        """What the object is, for messages."""
        return "policy" if self.shown.startswith("policy") else type(self.used).__name__


def code_in_use(entry: Entry, pipeline: Sequence[Entry]) -> Iterator[CodeInUse]:
    """The script's code that runs where a middleware uses the objects of its contract.

    An object may tell this itself, by `code_in_use(lane)`, which returns pairs of an owner and functions. Of environments,
    these are all methods of the script's environments and wrappers; of other objects of the script, all methods too, where a
    middleware of the library uses them. The code of a middleware itself is not among it.

    Args:
        entry: the middleware.
        pipeline: all middleware.
    """
    terms = entry.contract
    for used in () if terms is None else terms.uses:
        if attribute_of(type(used), "code_in_use") is not None:
            pairs = used.code_in_use(terms.lane) if terms is not None else ()
            yield from (CodeInUse(used, owner, tuple(functions), frozenset()) for owner, functions in pairs if functions)
            continue
        if is_of_script(type(used).__module__) and not _is_of_library(entry.fn):
            continue  # the middleware itself calls it
        for owner in _of_script(used):
            functions = methods_of_script(owner)
            if functions:
                lanes = frozenset(it.contract.lane for it in pipeline if it.contract is not None and _names(used, it.contract))
                yield CodeInUse(used, owner, functions, lanes)


def settings_in_use(entry: Entry) -> Iterator[tuple[CodeInUse, Config]]:
    """The configurations that the library's code reads while a middleware uses the objects of its contract, and that a script
    may change during a run. An object tells them by `settings_in_use(lane)`."""
    terms = entry.contract
    for used in () if terms is None else terms.uses:
        if terms is not None and attribute_of(type(used), "settings_in_use") is not None:
            for settings in used.settings_in_use(terms.lane):
                yield CodeInUse(used, used, (), frozenset()), settings


def methods_of_script(owner: Any) -> tuple[FunctionType, ...]:
    """The methods of an object that classes of the script define, without constructors, and what they call."""
    found: dict[FunctionType, None] = {}
    for base in type(owner).__mro__:
        for name, member in vars(base).items() if is_of_script(base.__module__) else ():
            if name not in _CONSTRUCTORS and isinstance(function_of(member), FunctionType):
                found.update(dict.fromkeys(it for it in reached_functions(member, owner) if is_of_script(module_of(it))))
    return tuple(found)


def are_unordered(one: Entry, use: CodeInUse | None, other: Entry, other_use: CodeInUse | None) -> bool:
    """Whether nothing orders two middleware that reach the same.

    Args:
        one, other: the middleware.
        use, other_use: through which code; None if the middleware reaches it itself. What two middleware reach through the code
            of objects alone does not count.
    """
    mine, others = one.contract, other.contract
    if mine is None or others is None or mine.lane == others.lane or take_turns(one, other):
        return False
    if use is not None and other_use is not None:
        return False
    by_use, by_itself = (use, others) if use is not None else (other_use, mine)
    return by_use is None or by_itself.lane not in by_use.lanes


def advice_on_order(plain: Entry, using: Entry, use: CodeInUse) -> str:
    """How to order a middleware and another one that uses an object whose code reaches the same."""
    mine, stage = plain.contract, "" if using.contract is None else using.contract.stage
    is_code = use.shown != _UNKNOWN
    fix = f"name the {use.kind} that {using.name} uses in the contract of {plain.name}"
    fix += f", @contract(..., uses=({use.shown},))" if is_code else " (uses)"
    if mine is not None and using.contract is not None and stage and _ORDER[mine.lane] < _ORDER[using.contract.lane]:
        fix += f", or give it the stage {stage!r}"
    return fix


def _names(thing: Any, terms: Contract) -> bool:
    return any(use is thing for use in terms.uses)


def _is_of_library(fn: Any) -> bool:
    """Whether a middleware is of ding_lite, or of a class derived from one."""
    holder = attribute_of(fn, "__self__", fn)
    kinds = () if isinstance(holder, FunctionType) else type(holder).__mro__
    return is_of_ding_lite(attribute_of(holder, "__module__")) or any(is_of_ding_lite(it.__module__) for it in kinds)


def _of_script(used: Any) -> Iterator[Any]:
    """An object of the script; or the environments of the script inside an environment of a library."""
    waiting, seen = [used], dict[int, Any]()
    while waiting and len(seen) < _MOST:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, (list, tuple)):
            waiting += thing[:_MOST]
            continue
        if is_of_script(type(thing).__module__):
            yield thing
        held = attribute_of(thing, "__dict__", {})
        waiting += [held[name] for name in _INNER_ENVS if name in held]
