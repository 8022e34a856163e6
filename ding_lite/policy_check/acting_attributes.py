"""Attributes of a policy that its acting hooks use: copies of the policy act, and do not see what learning assigns."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from ding_lite.basics.attribute_reads import attributes_set, instructions_of, names_of
from ding_lite.basics.closures import names_in, parts_of
from ding_lite.basics.messages import warn_caller
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.basics.reached_functions import reached_functions

_NOTHING = object()
_changed: weakref.WeakKeyDictionary[type, list[str]] = weakref.WeakKeyDictionary()


class AttributesOfActing:
    """Warns of attributes that the script's acting hooks read, and to which learning assigns other values.

    Args:
        policy: a policy, before it learns.
    """

    def __init__(self, policy: Any) -> None:
        self._before = {name: _value(policy, name) for name in read_by_acting(policy)}

    def compare(self, policy: Any) -> None:
        """Warn, once for each attribute, if learning has changed its value."""
        for name, before in list(self._before.items()):
            now = _value(policy, name)
            if now is before or (isinstance(now, (bool, int, float, str, tuple)) and now == before):
                continue
            del self._before[name]
            kind = type(policy).__name__
            values = "" if before is _NOTHING else f", from {before!r:.40} to {now!r:.40}"
            warn_caller(
                f"learning changes self.{name} of {kind}{values}, and its acting hooks read it. Copies of the policy act. They "
                "get only the weights, and keep the earlier value. Compute it from self.train_iter, which a copy has with "
                "its weights; or register it as a buffer of the model; or return it from get_weights() and set it in "
                "set_weights(weights)."
            )


def read_by_acting(policy: Any) -> list[str]:
    """The attributes, not of the library's classes, that the script's acting hooks read, and that are not parts of weights."""
    functions = list(_of_acting(policy))
    if not functions:
        return []
    names = {name for fn in functions for name in names_in(fn.__code__)} - _known_to_library(type(policy))
    if policy.has_own_weights:
        weights = (reached_functions(getattr(type(policy), name), policy) for name in ("get_weights", "set_weights"))
        names -= {name for found in weights for fn in found for name in names_in(fn.__code__)}
    return sorted(name for name in names if _value(policy, name) is not _NOTHING)


def changed_by_acting(policy: Any) -> list[str]:
    """The attributes, not of the library's classes, that the script's acting hooks read and assign, such as a counter."""
    kind = type(policy)
    if kind not in _changed:
        _changed[kind] = _changed_by_acting(policy)
    return _changed[kind]


def _changed_by_acting(policy: Any) -> list[str]:
    functions = list(_of_acting(policy))
    assigned = {name for fn in functions for name in attributes_set(fn)}
    codes = [part for fn in functions for part in parts_of(fn.__code__)]
    read = {it.argval for code in codes for it in instructions_of(code) if it.opname == "LOAD_ATTR"}
    return sorted((read & assigned) - _known_to_library(type(policy)))


def _of_acting(policy: Any) -> Iterator[FunctionType]:
    """The functions of the script that the hooks of acting reach."""
    hooks = ("compute_actions", "extra_action_out", "get_initial_state")
    for hook in hooks:
        for fn in reached_functions(getattr(type(policy), hook, None), policy):
            if not is_of_ding_lite(fn.__module__):
                yield fn


def _known_to_library(kind: type) -> set[str]:
    return names_of([base for base in kind.__mro__ if is_of_ding_lite(base.__module__)])


def _value(policy: Any, name: str) -> Any:
    """An attribute of a policy that is neither a method nor a property."""
    found = inspect.getattr_static(policy, name, _NOTHING)
    return _NOTHING if hasattr(type(found), "__get__") else found
