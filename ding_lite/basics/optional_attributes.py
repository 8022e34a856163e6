"""Optional attributes: those that an object of a script or of another library may have."""

from __future__ import annotations

import functools
from typing import Any

_MISSING = object()


def attribute_of(thing: Any, name: str, default: Any = None) -> Any:
    """An attribute of an object; the default if it has none.

    A `__getattr__` or `__getattribute__` of a script may raise any error for an unknown name, such as the KeyError of the dict
    in which it looks. Then the default is returned too. Other errors, such as those of a property, are raised.

    Example:
        >>> class Settings:
        ...     def __getattr__(self, name):
        ...         return {"rate": 0.1}[name]
        >>> attribute_of(Settings(), "rate"), attribute_of(Settings(), "release")
        (0.1, None)
    """
    try:
        return getattr(thing, name, default)
    except Exception:
        cls: Any = type(thing)
        if hasattr(cls, "__getattr__") or cls.__getattribute__ is not object.__getattribute__:
            return default
        raise


def has_attribute(thing: Any, name: str) -> bool:
    """Whether an object has an attribute; an error of its `__getattr__` counts as no, see `attribute_of`."""
    return attribute_of(thing, name, _MISSING) is not _MISSING


def attribute_behind(fn: Any, name: str, default: Any = None) -> Any:
    """An attribute of a function or object, else of what it decorates with `functools.wraps`; the default if none has it.

    Example:
        >>> class Saver:
        ...     keeps = 3
        ...     def __call__(self, ctx): ...
        >>> attribute_behind(functools.wraps(Saver())(lambda ctx: None), "keeps")
        3
    """
    while fn is not None:
        found = attribute_of(fn, name, _MISSING)
        if found is not _MISSING:
            return found
        fn = fn.func if isinstance(fn, functools.partial) else attribute_of(fn, "__wrapped__")
    return default
