"""Derived states: what a class of this library reads of the state of a class that a user has derived from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ding_lite.basics.origins import is_of_ding_lite

_STATE_METHODS = ("state_dict", "load_state_dict")


def base_state(thing: object, state: Any, keys: Collection[str]) -> Any:
    """The entries of a state that the library's class of an object has saved.

    A derived class may add entries in `state_dict`. Its `load_state_dict` may pass them to `super().load_state_dict` or leave
    them out: the library's class drops them here before it checks the state. In the state of an object whose class does not
    override these methods, every entry stays, so that an unknown one is still an error.

    Args:
        thing: the object that loads the state.
        state: argument of its `load_state_dict`.
        keys: all keys that the library's class may save.

    Returns:
        A new dict if entries were dropped, else the state itself, also if it is no mapping.

    Example:
        >>> class Counted:
        ...     __module__ = "script"
        ...     def state_dict(self): ...
        >>> base_state(Counted(), {"size": 2, "calls": 3}, ("size",))
        {'size': 2}
    """
    if not has_own_state(type(thing)) or not isinstance(state, Mapping) or all(name in keys for name in state):
        return state
    return {name: value for name, value in state.items() if name in keys}


def has_own_state(kind: type) -> bool:
    """Whether a class of a user, not one of this library, defines `state_dict` or `load_state_dict` of this class."""
    for name in _STATE_METHODS:
        definer = next((one for one in kind.__mro__ if name in vars(one)), None)
        if definer is not None and not is_of_ding_lite(definer.__module__):
            return True
    return False
