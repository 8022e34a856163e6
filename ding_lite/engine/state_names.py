"""State names: which attributes of an object its `state_dict` saves, or `forward` sets anew, found from the code."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ding_lite.basics.attribute_reads import instructions_of, names_of
from ding_lite.basics.closures import function_of, names_in, parts_of
from ding_lite.basics.origins import is_of_ding_lite, is_of_script
from ding_lite.basics.reached_functions import named_values

_RETURNING = ("get_weights", "set_weights", "get_extra_state", "set_extra_state")  # of a policy, and of a torch module
_SAVING = ("state_dict", "load_state_dict", "state_in_pieces", *_RETURNING)
_MOST = 1000  # functions that are looked at
_LOADS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF")
_COPIES = ("COPY", "DUP_TOP")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD")
_ALL = ("__dict__", "__getstate__", "__reduce__", "__reduce_ex__")
_HARMLESS = ("super", "type", "isinstance", "id", "len")
_BY_NAME = ("getattr", "setattr", "hasattr")


class StateNames(NamedTuple):
    """What the `state_dict` of a class of the script knows."""

    saved: frozenset[str]
    """The attributes that it saves, or may save."""
    added: frozenset[str] | None
    """The attributes that only classes derived from the one with the `state_dict` have; None for all that are not saved,
    because the `state_dict` is one of the library or of torch."""


@functools.cache
def state_names(kind: Any) -> StateNames | None:
    """The attributes that the `state_dict` of a class of the script knows; None if it may know all of them, if its code is
    unknown, or if there is none."""
    owner = next((base for base in kind.__mro__ if "state_dict" in vars(base)), None)
    if owner is None or not is_of_script(kind.__module__) or not hasattr(kind, "load_state_dict"):
        return None
    is_of_module, is_own = _is_module(owner), is_of_script(owner.__module__)
    if not (is_of_module or is_own or is_of_ding_lite(owner.__module__)):
        return None
    saved = names_of([base for base in kind.__mro__ if not is_of_script(base.__module__)])
    returned = [function_of(getattr(kind, name, None)) for name in _RETURNING]  # the state has what they return
    saved |= {name for it in returned if isinstance(it, FunctionType) for name in names_in(it.__code__)}
    saved |= {name for base in kind.__mro__ if _is_module(base) for name in vars(base())}
    if not is_own:
        return StateNames(frozenset(saved), None)
    named = _names_in_own_state(kind)
    if named is None:
        return None
    place = kind.__mro__.index(owner)
    added = names_of(kind.__mro__[:place]) - names_of(kind.__mro__[place:])
    return StateNames(frozenset({*saved, *named}), frozenset(added))


@functools.cache
def set_in_forward(kind: Any) -> frozenset[str]:
    """The attributes that `forward` of a network sets, in each call and before it reads them, for methods that are called after
    it: `self._features = self.body(obs)`.

    Example:
        >>> class Net:
        ...     def forward(self, obs):
        ...         self.features = self.body(obs)
        ...         self.turns += 1
        ...         if self.training:
        ...             self.last = obs
        >>> set_in_forward(Net)
        frozenset({'features'})
    """
    forward = function_of(getattr(kind, "forward", None))
    if not isinstance(forward, FunctionType) or not forward.__code__.co_argcount:
        return frozenset()
    found, read, name = set[str](), set[str](), forward.__code__.co_varnames[0]
    for before, now in itertools.pairwise(instructions_of(forward.__code__)):
        if "JUMP" in now.opname:  # what follows may not run
            break
        if before.opname.startswith("LOAD_FAST") and before.argval == name:
            if now.opname == "STORE_ATTR":
                found |= {now.argval} - read
            read.add(now.argval)
    return frozenset(found)


def _is_module(base: type) -> bool:
    return base.__module__ == "torch.nn.modules.module" and base.__name__ == "Module"


def _names_in_own_state(kind: Any) -> set[str] | None:
    """The names and string constants in the code of the script that saves and loads a state; None if it takes all attributes,
    or if there is no such code."""
    reached = _functions_of_state(kind)
    if not any(it.__name__ == "state_dict" for it in reached):
        return None
    methods = {it for base in kind.__mro__ for member in vars(base).values() for it in _functions_in(member)}
    if any(takes_all(it) for it in methods.intersection(reached)):
        return None
    return {name for it in reached for name in (*names_in(it.__code__), *_strings_in(it.__code__))}


def _functions_of_state(kind: Any) -> list[FunctionType]:
    """The functions of the script that save and load a state, and those that they name. Unlike `reached_functions`, not all
    methods of a class that they name, as in `super(Counter, self)`."""
    members = [vars(base)[name] for name in _SAVING for base in kind.__mro__ if name in vars(base)]
    waiting = [it for member in members for it in _functions_in(member)]
    found: dict[FunctionType, None] = {}
    while waiting and len(found) < _MOST:
        one = waiting.pop()
        if one not in found:
            found[one] = None
            waiting += [it for value in named_values(one, kind) for it in _functions_in(value)]
    return list(found)


def _functions_in(member: Any) -> list[FunctionType]:
    """The function of a function, method or property of the script, without decorators around it; none of anything else."""
    one = member.func if isinstance(member, functools.cached_property) else function_of(member)
    while isinstance(one, FunctionType) and "__wrapped__" in vars(one):
        one = vars(one)["__wrapped__"]
    return [one] if isinstance(one, FunctionType) and is_of_script(one.__module__) else []


def _strings_in(code: CodeType) -> Iterator[str]:
    for part in parts_of(code):
        yield from _strings_of(part.co_consts)


def _strings_of(constants: Iterable[Any]) -> Iterator[str]:
    for one in constants:
        if isinstance(one, str):
            yield one
        elif isinstance(one, (tuple, frozenset)):
            yield from _strings_of(one)


def takes_all(method: FunctionType) -> bool:
    """Whether a method may take all attributes of its object, because it does more than to read and set some by their names:
    `vars(self)`, `self.__dict__`, `getattr(self, name)`, `copy.deepcopy(self)`.

    Example:
        >>> def some(self):
        ...     return {"a": self.a, "b": getattr(self, "b")}
        >>> def everything(self):
        ...     return dict(vars(self))
        >>> takes_all(some), takes_all(everything)
        (False, True)
    """
    code = method.__code__
    return bool(code.co_argcount) and any(_takes_all(part, code.co_varnames[0]) for part in parts_of(code))


def _takes_all(code: CodeType, name: str) -> bool:
    found = instructions_of(code)
    for index, now in enumerate(found):
        names = now.argval if isinstance(now.argval, tuple) and now.opname.startswith("LOAD_FAST") else (now.argval,)
        if name not in names or not now.opname.startswith(_LOADS):
            continue
        if name in names[:-1]:  # one instruction loads several variables
            return True
        later = index + 1
        while found[later].opname in _COPIES:  # self.n += 1
            later += 1
        following, before = found[later], [it.argval for it in found[max(0, index - 2) : index]]
        if following.opname in _ATTRIBUTES:
            if following.argval in _ALL:
                return True
            continue
        is_harmless = any(it in _HARMLESS for it in before) or before[-1:] in (["state_dict"], ["load_state_dict"])
        is_by_name = before[-1:] in [[it] for it in _BY_NAME] and isinstance(following.argval, str)
        if not is_harmless and not (is_by_name and following.opname == "LOAD_CONST"):
            return True
    return False
